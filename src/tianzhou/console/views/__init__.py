'''Pages: one module a noun, one function a page.

How to add a page:

1. A view, here in `views/NOUN.py` (pages of a cluster in `views/cluster/`, whose `state` has the
   snapshot, and questions to brokers). It returns a frozen struct: what `.json` gives and the
   template shows. It never makes HTML. An unknown figure is None (the page shows "?"), never 0; a
   reason that people read is a `Text`.

       class Topics(msgspec.Struct, frozen=True, kw_only=True):
           topics: Listing[TopicRow]

       async def topics(ask: Ask) -> Topics:
           """The topics of a cluster."""
           rows = [...]              # from the snapshot of ask.cluster; no broker is asked
           return Topics(topics=listing(
               ask, rows, find=lambda row: (row.name,),
               sort={"name": lambda row: row.name, "lag": lambda row: row.lag}, first="-lag",
           ))

   `ask.person` is who asks, `ask.path["topic"]` a name in the address, `ask.query` the query. For
   what does not exist raise `NotFound`; other answers are in `web/refusals.py`. Times are
   milliseconds; the template shows them in the zone of the person.

2. A line in `ROUTES` of `app.py`:

       page("/c/{cluster}/topics", topics.topics, "Topics",
            is_live=True, version=..., rows="topics"),

   `who=Who.ADMINISTRATOR` hides it from readers (they get 404); `scope` is what a token needs.
   `is_live`: an open page asks again every five seconds. `version` is a function of the ask, such
   as the version of the snapshot and whether it is stale: while it is equal the rendered page is
   used again for everyone. Without it each request renders, and 304 saves the transfer only.
   `rows` names the `Listing` that `.csv` gives. `web/navigation.py` has all links of the
   navigation; they appear when their route exists.

3. A template, `templates/topics.html`, with the name of the view: only the inner part. First line

       {% import "ui.html" as ui with context %}

   `ui` has the components: page head, toolbar with find, table, stat, spark, badge, form fields,
   banners for empty, failed and partial, progress, chart, tabs. Look at `people.html`. Links:
   `{{ url("/c/{}/topics/{}", cluster, row.name) }}`. Never `|safe`, no `style=`, no `on...=`, no
   script: the Content-Security-Policy forbids them.

4. Words: every English text in a template is `{{ _("Topics") }}`, in Python `Text("Topics")`; with
   values `_("{n} topic|{n} topics", n=count)`. Its Chinese goes to a file of yours in `words/zh/`
   (all are merged); `tests/console/test_words.py` lists missing and left-over ones.

5. Changes: `changes/NOUN.py`. A function checks what is given and says what it would do; nothing is
   changed before `execute`:

       class CreateTopic(msgspec.Struct, frozen=True, kw_only=True):
           name: str
           queues: int = 8

       async def create(ask: Ask, given: CreateTopic) -> Prepared:
           plan = Plan(title=Text("Create the topic {name}", name=given.name), rows=(...))

           async def execute() -> Done:
               ...
               return Done(subject=..., notice=Text("..."), location=..., before=None, after=given)

           return Prepared(plan, execute)

   and in the route: `page(..., change("create", topics.create, who=Who.ADMINISTRATOR))`. The form
   posts to the address of the page with `_do=create`; `ui.form` makes it. Plan, typed name,
   password, audit row, redirect and JSON answer are made by `web/dispatch.py`.

6. Tests: `tests/console/` has `client` (logged in as administrator) and `reader`; the walk over the
   route table (`test_routes.py`) covers permissions by itself. Test the view with a real cluster
   (`tianzhou.testing.Cluster`), the struct by `.json`, and the change by its effect on the broker.
'''
