"""Jobs: long work of the console, one at a time, with progress; it survives a restart.

    rows.py      the tables: jobs, the result of each item, output to download
    worker.py    claims a job, runs it, stores how far it is after every few items
    kinds.py     what each kind of job runs
    resend.py    dead letters to their group or to a topic
    export.py    dead letters as JSON lines or CSV
    copy.py      topics and groups that a broker lacks
    doctor.py    the checks of `tianzhou doctor`

A job runs at least once: what was done after its last stored position is done again when the
console was killed. A change that begins a job checks everything first and adds a row; the page of
the job shows the rest.
"""
