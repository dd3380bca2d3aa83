"""How long the body of a request to the nameserver may be, by its code.

A registration lists all topics of a broker, so it may be as long as a frame, if it is JSON as
brokers write it (`protocol/bodies/codec`).
"""

from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.quota.bodies import Longer

_MIB = 1024 * 1024

LONGER: Longer = {
    RequestCode.REGISTER_BROKER: None,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _MIB,
    RequestCode.UPDATE_NAMESRV_CONFIG: _MIB,
}
