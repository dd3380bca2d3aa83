"""A stored message as a new draft: for delivery after a delay, for a retry, for dead letters."""

from tianzhou.message import Host
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.pure.record import RecordFields
from tianzhou.store.message_store import Draft


def redraft(
    fields: RecordFields,
    topic: str,
    queue_id: int,
    props: dict[str, str],
    reconsume_count: int | None = None,
    store_host: Host | None = None,
    prepared_log_offset: int = 0,
) -> Draft:
    """A stored message for another topic and queue, with other properties."""
    return Draft(
        topic=topic,
        queue_id=queue_id,
        body=fields[1],
        properties_text=properties.encode(props),
        flag=fields[6],
        sys_flag=fields[7] & ~(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6),
        born_time_ms=fields[8],
        born_host=fields[9],
        store_host=fields[11] if store_host is None else store_host,
        reconsume_count=fields[12] if reconsume_count is None else reconsume_count,
        prepared_log_offset=prepared_log_offset,
    )
