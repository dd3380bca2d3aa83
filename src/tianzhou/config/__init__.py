"""Configuration: settings declared, filled from files, environment and flags, and changed.

One file per subject: `properties` (Java's text format), `settings` (typed fields, their sources),
`live` (settings of a running program), `files` (replacing a small file as a whole).
"""
