"""How long the body of a request to the nameserver may be, by its code.

A registration lists all topics of a broker, so it may be as long as a frame, if it is JSON as
brokers write it (`protocol/bodies/codec`).
"""

from tianzhou.limits import SETTINGS_BODY_BYTES_MAX
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.quota.bodies import Longer

LONGER: Longer = {
    RequestCode.REGISTER_BROKER: None,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: SETTINGS_BODY_BYTES_MAX,
    RequestCode.UPDATE_NAMESRV_CONFIG: SETTINGS_BODY_BYTES_MAX,
}
