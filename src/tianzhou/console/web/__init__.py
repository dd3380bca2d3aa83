"""Requests of browsers and programs: who may, routing, rendering, tables, translations.

dispatch    the ASGI application: request -> gate -> route -> view or change -> response
gate        the only module that decides who may do what
route       what a line of the route table declares
ask         what a view is given: the request, the person, the cluster
body        forms and JSON into structs
listing     find, sort and pages of tables
render      templates; words, figures: translations, numbers and times in them
openapi     the description of all routes
"""
