"""The route table, and the application made of it. How to add a page: `views/__init__.py`."""

from tianzhou.console.changes import jobs as change_jobs
from tianzhou.console.changes import letters as change_letters
from tianzhou.console.changes import me as change_me
from tianzhou.console.changes import messages as change_messages
from tianzhou.console.changes import people as change_people
from tianzhou.console.changes import settings as change_settings
from tianzhou.console.operations import (
    OF_BROKER,
    OF_GROUP,
    OF_NAMESERVERS,
    OF_OFFSETS,
    OF_TOPIC,
    OPERATIONS,
)
from tianzhou.console.views import (
    audit,
    clusters,
    health,
    jobs,
    letters,
    login,
    me,
    messages,
    oidc,
    people,
    settings,
    tail,
    trace,
)
from tianzhou.console.views.cluster import (
    broker,
    brokers,
    dead_letters,
    group,
    groups,
    members,
    nameservers,
    overview,
    producers,
    state,
    statistics,
    topic,
    topics,
)
from tianzhou.console.web.ask import Console
from tianzhou.console.web.dispatch import Application
from tianzhou.console.web.route import Route, Who, answer, change, page
from tianzhou.console.web.static import static_file

BOTH = ("GET", "HEAD", "POST")
ALL, ANY, ADMIN = Who.STRANGER, Who.READER, Who.ADMINISTRATOR
LATEST, DETAILS = state.version, state.detail_version

ROUTES: tuple[Route, ...] = (
    # -- for strangers -----------------------------------------------------------------------------
    answer("/static/{name:path}", static_file, "Files", who=ALL),
    answer("/login", login.log_in, "Log in", who=ALL, methods=BOTH),
    answer("/setup/{code}", login.set_up, "Set up", who=ALL, methods=BOTH),
    answer("/display", login.display, "Language and theme", who=ALL, methods=("POST",)),
    answer("/oidc/start", oidc.start, "Log in", who=ALL),
    answer("/oidc/callback", oidc.callback, "Log in", who=ALL),
    answer("/logout", login.log_out, "Log out", who=ALL, methods=("POST",)),
    answer("/healthz", health.healthz, "Health", who=ALL),
    # -- for programs ------------------------------------------------------------------------------
    answer("/metrics", health.metrics, "Metrics"),
    answer("/openapi", health.openapi, "OpenAPI"),
    # -- messages ----------------------------------------------------------------------------------
    page("/c/{cluster}/messages", messages.messages, "Messages", scope="bodies", rows="found"),
    page(
        "/c/{cluster}/topics/{topic}/messages", messages.messages, "Messages", scope="bodies",
        rows="found",
    ),
    page("/c/{cluster}/topics/{topic}/tail", tail.tail, "Live messages", scope="bodies"),
    answer("/c/{cluster}/topics/{topic}/tail/stream", tail.tail_stream, "Live messages",
           scope="bodies"),
    page(
        "/c/{cluster}/topics/{topic}/send", messages.send_message, "Send a message",
        change("send", change_messages.send),
    ),
    page(
        "/c/{cluster}/messages/{id}", messages.message, "Message",
        change("resend", change_messages.resend),
        change("consume", change_messages.consume),
        change("recall", change_messages.recall),
        scope="bodies",
    ),
    page("/c/{cluster}/messages/{id}/trace", trace.trace, "Trace"),
    answer("/c/{cluster}/messages/{id}/body", messages.message_body, "Body", scope="bodies"),
    # -- dead letters ------------------------------------------------------------------------------
    page("/c/{cluster}/dead-letters", dead_letters.dead_letters, "Dead letters", is_live=True,
         version=LATEST, rows="groups"),
    page(
        "/c/{cluster}/dead-letters/{group}", letters.letters, "Dead letters",
        change("resend", change_letters.resend),
        change("export", change_letters.export, scope="bodies"),
        scope="bodies", rows="found",
    ),
    # -- jobs --------------------------------------------------------------------------------------
    page("/c/{cluster}/jobs", jobs.jobs, "Jobs", is_live=True, rows="jobs"),
    page(
        "/c/{cluster}/jobs/{job}", jobs.job, "Job", change("cancel", change_jobs.cancel),
        is_live=True, rows="items",
    ),
    answer("/c/{cluster}/jobs/{job}/output", jobs.job_output, "Output", scope="bodies"),
    *OPERATIONS,
    # -- the console -------------------------------------------------------------------------------
    page("/", clusters.clusters, "Clusters", is_live=True, version=clusters.version),
    # -- a cluster ---------------------------------------------------------------------------------
    page("/c/{cluster}", overview.overview, "Overview", is_live=True, version=LATEST),
    page("/c/{cluster}/brokers", brokers.brokers, "Brokers",
         is_live=True, version=LATEST, rows="brokers"),
    page("/c/{cluster}/brokers/{broker}", broker.broker, "Broker", *OF_BROKER,
         is_live=True, version=DETAILS),
    page("/c/{cluster}/nameservers", nameservers.nameservers, "Nameservers", *OF_NAMESERVERS,
         is_live=True, version=DETAILS),
    page("/c/{cluster}/topics", topics.topics, "Topics",
         is_live=True, version=LATEST, rows="topics"),
    page("/c/{cluster}/topics/{topic}", topic.topic, "Topic", *OF_TOPIC,
         is_live=True, version=DETAILS),
    page("/c/{cluster}/groups", groups.groups, "Consumer groups",
         is_live=True, version=LATEST, rows="groups"),
    page("/c/{cluster}/groups/{group}", group.group, "Consumer group", *OF_GROUP, *OF_OFFSETS,
         is_live=True, version=DETAILS),
    page("/c/{cluster}/groups/{group}/member", members.member, "Member"),
    page("/c/{cluster}/producers", producers.producers, "Producers",
         is_live=True, version=LATEST, rows="producers"),
    page("/c/{cluster}/statistics", statistics.statistics, "Statistics", rows="rows"),
    # -- people ------------------------------------------------------------------------------------
    page(
        "/people", people.people, "People",
        change("add", change_people.add, scope="", asks_password=True),
        who=ADMIN, scope="platform", rows="people",
    ),
    page(
        "/people/{person}", people.person, "Person",
        change("change", change_people.change, scope="", asks_password=True),
        change("disable", change_people.disable, scope="", asks_password=True),
        change("enable", change_people.enable, scope="", asks_password=True),
        change("set-password", change_people.set_password, scope="", asks_password=True),
        who=ADMIN, scope="platform",
    ),
    page(
        "/me", me.me, "Your account",
        change("profile", change_me.profile, who=ANY, scope="", has_plan=False),
        change("password", change_me.password, who=ANY, scope="", asks_password=True),
        change("make-token", change_me.make_token, who=ANY, scope="", asks_password=True),
        change("revoke-token", change_me.revoke_token, who=ANY, scope=""),
        change("end-session", change_me.end_session, who=ANY, scope="", has_plan=False),
        change("end-other-sessions", change_me.end_other_sessions, who=ANY, scope="",
               has_plan=False),
    ),
    page(
        "/settings", settings.settings, "Settings",
        change("add-cluster", change_settings.add_cluster, scope="platform", asks_password=True),
        change("remove-cluster", change_settings.remove_cluster, scope="platform",
               asks_password=True),
        who=ADMIN, scope="platform",
    ),
    page("/audit", audit.audit, "Audit", who=ADMIN, scope="platform", rows="entries"),
)  # fmt: skip
"""One line a route; the first that matches is used."""


def build(console: Console) -> Application:
    """The ASGI application of a console."""
    console.routes = ROUTES
    return Application(console)
