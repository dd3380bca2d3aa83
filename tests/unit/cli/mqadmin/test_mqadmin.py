"""Subcommands of mqadmin: each is translated to a command or has a reason why not."""

import shlex

import pytest
from tests.support.command_words import check_words

from tianzhou.cli.mqadmin import command
from tianzhou.cli.mqadmin.command import UnsupportedOption, UsageError, build, parse, run
from tianzhou.cli.mqadmin.table import ALIASES, SECOND_NAMES, Alias

OF_4_9 = [
    "updateTopic",
    "deleteTopic",
    "updateSubGroup",
    "deleteSubGroup",
    "updateBrokerConfig",
    "updateTopicPerm",
    "topicRoute",
    "topicStatus",
    "topicClusterList",
    "brokerStatus",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByUniqueKey",
    "queryMsgByOffset",
    "queryMsgTraceById",
    "printMsg",
    "printMsgByQueue",
    "sendMsgStatus",
    "brokerConsumeStats",
    "producerConnection",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "cloneGroupOffset",
    "producer",
    "clusterList",
    "topicList",
    "updateKvConfig",
    "deleteKvConfig",
    "wipeWritePerm",
    "addWritePerm",
    "resetOffsetByTime",
    "skipAccumulatedMessage",
    "updateOrderConf",
    "cleanExpiredCQ",
    "deleteExpiredCommitLog",
    "cleanUnusedTopic",
    "startMonitoring",
    "statsAll",
    "allocateMQ",
    "checkMsgSendRT",
    "clusterRT",
    "getNamesrvConfig",
    "updateNamesrvConfig",
    "getBrokerConfig",
    "getConsumerConfig",
    "queryCq",
    "sendMessage",
    "consumeMessage",
    "updateAclConfig",
    "deleteAclConfig",
    "clusterAclConfigVersion",
    "updateGlobalWhiteAddr",
    "exportMetadata",
    "exportConfigs",
    "exportMetrics",
]

CALLS = {
    "updateTopic -c C -t T -r 4 -w 8 -p 6 -o true -a +a=b,+c=d": "topic update T --or-create "
    "--from-defaults --cluster C --read-queues 4 --write-queues 8 --perm 6 --ordered "
    "--attribute a=b --attribute c=d",
    "deleteTopic -t T -c C": "topic delete T --cluster C --yes",
    "updateTopicPerm -b h:1 -t T -p 4": "topic update T --perm 4 --broker h:1",
    "topicRoute -t T -l": "topic route T",
    "topicStatus --topic T": "topic show T",
    "topicClusterList -t T": "topic route T",
    "topicList": "topic list --all",
    "topicList -c": "topic list --all --groups",
    "topicStatus -t T -c C": "topic show T --through C",
    "updateTopic -b h:1 -t T -u true -s false -a +a=b,-c": "topic update T --or-create "
    "--from-defaults --broker h:1 --unit --no-unit-sub --attribute a=b --remove-attribute c",
    "updateTopicList -c C -f F": "topic apply F --cluster C --yes",
    "updateSubGroupList -b h:1 -f F": "group apply F --broker h:1 --yes",
    "updateOrderConf -t T -m get -v a:4": "namesrv kv get ORDER_TOPIC_CONFIG T",
    "statsAll -a": "topic stats --active",
    "updateSubGroup -c C -g G -p {} --attributes +a=b,-c": "group update G --or-create "
    "--from-defaults --cluster C --not-from-min --no-broadcast --retry-policy {} --attribute a=b "
    "--remove-attribute c",
    "consumerConnection -g G -b h:1": "group show G --broker h:1",
    "consumerProgress -g G -t T -c C": "group show G --topic T --through C",
    "consumerProgress -c C -s false": "group list --cluster C",
    "consumerStatus -g G -b h:1": "group members G --broker h:1",
    "producerConnection -g G -t T": "group producers G --topic T",
    "resetOffsetByTime -g G -t T -c -s now": "offset reset G T --yes --to now --cpp",
    "resetOffsetByTime -g G -t T -s now --cplus": "offset reset G T --yes --to now --cpp",
    "resetOffsetByTime -g G -t T -s now -c C": "offset reset G T --yes --to now --through C",
    "skipAccumulatedMessage -g G -t T -c C": "offset skip G T --yes --through C",
    "skipAccumulatedMessage -g G -t T -f false": "offset reset G T --yes --to latest --only-back",
    "queryMsgById -i I,J -t T -f gbk -c C -u unit": "message show I J --topic T --through C "
    "--charset gbk",
    "queryMsgById -i I -t T -g G -d D": "message push I --group G --client D --topic T",
    "queryMsgById -i I,J -s true -u unit": "message resend I J",
    "queryMsgByKey -t T -k K -b 1 -e 2 -c C -p T -l L": "message query T --key K --from 1 --to 2 "
    "--key-type T --last-key L --through C",
    "queryMsgByUniqueKey -t T -i I -g G -d D": "message push I --group G --client D --topic T",
    "queryMsgByUniqueKey -t T -i I -s 1 -e 2 -c C": "message query T --unique-key I --from 1 "
    "--to 2 --through C",
    "queryMsgByOffset -t T -b B -i 1 -o 5 -f gbk -r R": "message at T --broker B --queue 1 "
    "--offset 5 --charset gbk --through R",
    "queryMsgTraceById -i I -b 1 -e 2 -c 9": "message trace I --from 1 --to 2 --limit 9",
    "printMsg -t T -c gbk -d false -l L": "message query T --from earliest --limit 1000000 "
    "--charset gbk --no-body --through L",
    "printMsgByQueue -t T -a B -i 0 -p false": "message query T --from earliest --limit 1000000 "
    "--broker B --queue 0 --no-list",
    "printMsgByQueue -t T -a B -i 0 -f true": "message query T --from earliest --limit 1000000 "
    "--broker B --queue 0 --count-tags --no-list",
    "printMsgByQueue -t T -a B -i 0 -p true -d true -f true -c gbk": "message query T "
    "--from earliest --limit 1000000 --charset gbk --body --broker B --queue 0 --count-tags",
    "sendMessage -t T -p body -m true": "message send T body --trace",
    "consumeMessage -t T -g G -s 1 -e 2": "message query T --from 1 --to 2 --group G --limit 128",
    "queryCq -t T -q 0 -i 3": "message entries T --queue 0 --offset 3",
    "brokerConsumeStats -b h:1 -t 1500": "broker lag h:1 --timeout 1.5",
    "updateBrokerConfig -c C -k a -v b": "broker config C --set a=b --yes --masters",
    "updateBrokerConfig -c C -k a -v b -a true": "broker config C --set a=b --yes",
    "getBrokerConfig -b h:1 -c C": "broker config h:1",
    "clusterRT -p true -m R": "cluster latency --every 10 --lines --room R",
    "clusterRT -m R": "cluster latency --every 10",
    "getAclConfig -c C": "acl list --cluster C",
    "updateOrderConf -t T -v a:4 -m put": "namesrv kv put ORDER_TOPIC_CONFIG T a:4",
    "updateOrderConf -t T -m get": "namesrv kv get ORDER_TOPIC_CONFIG T",
    "updateOrderConf -t T -m delete": "namesrv kv delete ORDER_TOPIC_CONFIG T --yes",
    "statsAll -t T": "topic stats T",
    "statsAll": "topic stats",
    "updateSubGroup -c C -g G -s false -r 3 -q 2 -i 0 -w 1 -a true -d true -m false": "group "
    "update G --or-create --from-defaults --cluster C --no-consume --not-from-min --broadcast "
    "--notify --retry-queues 2 --retries 3 --broker-id 0 --broker-id-when-slow 1",
    "deleteSubGroup -c C -g G": "group delete G --cluster C --keep-offsets --yes",
    "deleteSubGroup -b h:1 -g G -r true": "group delete G --broker h:1 --yes",
    "consumerConnection -g G": "group show G",
    "consumerProgress": "group list",
    "consumerProgress -g G -t T -s true": "group show G --topic T",
    "consumerStatus -g G -i I -s": "group members G --client I --stacks",
    "getConsumerConfig -g G": "group show G",
    "producer -b h:1": "group producers --broker h:1",
    "resetOffsetByTime -g G -t T -s now": "offset reset G T --yes --to now",
    "resetOffsetByTime -g G -t T -s -1 -f false": "offset reset G T --yes --to latest --only-back",
    "resetOffsetByTime -g G -t T -s now -b B -q 1 -o 7": "offset reset G T --yes --broker B "
    "--queue 1 --to-offset 7",
    "skipAccumulatedMessage -g G -t T -f true": "offset skip G T --yes",
    "cloneGroupOffset -s A -d B -t T -o true": "offset clone A B T --yes --online-too",
    "queryMsgById -i I": "message show I",
    "queryMsgByKey -t T -k K -m 5": "message query T --key K --limit 5",
    "queryMsgByUniqueKey -t T -i I -a": "message query T --unique-key I",
    "queryMsgByOffset -t T -b B -i 1 -o 5": "message at T --broker B --queue 1 --offset 5",
    "queryMsgTraceById -i I -t TT": "message trace I --trace-topic TT",
    "printMsg -t T -d true -s tagA": "message query T --from earliest --limit 1000000 --tag tagA "
    "--body",
    "printMsgByQueue -t T -a B -i 0": "message query T --from earliest --limit 1000000 "
    "--broker B --queue 0",
    "sendMessage -t T -p body -k K -c tag -m false": "message send T body --key K --tag tag",
    "consumeMessage -t T -c 5": "message query T --from earliest --limit 5",
    "consumeMessage -t T -b B -i 0 -o 7 -c 5": "message query T --from earliest --broker B "
    "--queue 0 --offset 7 --limit 5",
    "queryCq -t T -q 0 -i 3 -c 5 -b B": "message entries T --broker B --queue 0 --offset 3 "
    "--count 5",
    "sendMsgStatus -b B -s 10 -c 5": "bench send B --count 5 --size 10 --concurrency 1",
    "checkMsgSendRT -t T -a 5 -s 10": "bench send T --count 5 --size 10 --concurrency 1",
    "setConsumeMode -b h:1 -t T -g G -m POP -q 2": "group mode G T POP --share 2 --broker h:1",
    "haStatus -b h:1": "broker ha h:1",
    "haStatus -c C -i 5": "broker ha C --every 5 --watch",
    "getSyncStateSet -a h:1 -b B -i 5": "broker group B --broker h:1",
    "electMaster -a h:1 -b 2 -bn B -c C": "broker switch B --to 2 --broker h:1 --yes",
    "resetMasterFlushOffset -b h:1 -o 7": "broker flush-offset h:1 7 --yes",
    "clusterList": "cluster show",
    "clusterList -m": "cluster top --once",
    "clusterList -i 5": "cluster show --every 5 --watch",
    "brokerStatus -b h:1": "broker runtime h:1",
    "brokerConsumeStats -b h:1 -l 10 -o true": "broker lag h:1 --min-lag 10 --orderly",
    "getBrokerConfig -c C": "broker config C",
    "updateBrokerConfig -b h:1 -k a -v b": "broker config h:1 --set a=b --yes",
    "cleanExpiredCQ -b h:1": "broker clean queues --broker h:1 --yes",
    "deleteExpiredCommitLog -c C": "broker clean log --cluster C --yes",
    "cleanUnusedTopic": "broker clean topics --yes",
    "updateKvConfig -s S -k K -v V": "namesrv kv put S K V",
    "deleteKvConfig -s S -k K": "namesrv kv delete S K --yes",
    "wipeWritePerm -b B": "namesrv write-permission B off --yes",
    "addWritePerm -b B": "namesrv write-permission B on --yes",
    "getNamesrvConfig": "namesrv config",
    "updateNamesrvConfig -k a -v b": "namesrv config --set a=b --yes",
    "allocateMQ -t T -i 10.0.0.1,10.0.0.2": "group allocate T 10.0.0.1 10.0.0.2",
    "clusterRT": "cluster latency --every 10",
    "clusterRT -a 5 -s 10 -c C -i 3 -p false": "cluster latency --count 5 --size 10 --cluster C "
    "--every 3",
    "startMonitoring": "cluster watch",
    "exportMetadata -c C -f F -t -s": "cluster export metadata --cluster C --folder F --special "
    "--only topics",
    "exportMetadata -b h:1 -g": "cluster export metadata --broker h:1 --only groups",
    "exportMetadata -c C": "cluster export metadata --cluster C",
    "exportConfigs -c C -f F": "cluster export configs --cluster C --folder F",
    "exportMetrics -c C": "cluster export metrics --cluster C",
    "updateAclConfig -c C -a A -s 12345678 -m true -t T=PUB,U=SUB": "acl put A --secret 12345678 "
    "--admin --topic T=PUB --topic U=SUB --cluster C --yes",
    "deleteAclConfig -c C -a A": "acl delete A --cluster C --yes",
    "clusterAclConfigVersion -c C": "acl versions --cluster C",
    "updateGlobalWhiteAddr -c C -g 10.0.0.1": "acl white-list 10.0.0.1 --cluster C --yes",
}


def test_every_subcommand_of_4_9_is_supported() -> None:
    assert not set(OF_4_9) - set(ALIASES)
    assert len(set(OF_4_9)) == 56
    assert not [name for name in OF_4_9 if ALIASES[name].build is None]


def test_unsupported_subcommands_have_a_reason() -> None:
    assert all(alias.why for alias in ALIASES.values() if alias.build is None)
    assert all(alias.ours for alias in ALIASES.values() if alias.build is not None)
    assert set(SECOND_NAMES.values()) <= set(ALIASES)


def test_every_supported_subcommand_has_a_case() -> None:
    tried = {call.split()[0] for call in CALLS}
    assert tried == {name for name, alias in ALIASES.items() if alias.build is not None}


@pytest.mark.parametrize("call", CALLS)
def test_subcommand_is_translated(call: str) -> None:
    name, *rest = shlex.split(call)
    words = build(ALIASES[name], parse(ALIASES[name], [*rest, "-n", "ns:9876"]))
    assert words == [*shlex.split(CALLS[call]), "--namesrv", "ns:9876"]
    check_words(words)


def test_spellings_of_options() -> None:
    alias = ALIASES["topicStatus"]
    for words in (["-t", "T"], ["-tT"], ["--topic", "T"], ["--topic=T"], ["-t=T"]):
        assert parse(alias, words).values == {"t": "T"}


def test_usage_errors() -> None:
    alias = ALIASES["topicStatus"]
    with pytest.raises(UsageError, match="unknown option '-x'"):
        parse(alias, ["-x", "1"])
    with pytest.raises(UsageError, match="needs a value"):
        parse(alias, ["-t"])
    with pytest.raises(UsageError, match=r"-t \(topic\) is missing"):
        build(alias, parse(alias, []))
    forgetful = Alias("t/topic= x/more=", "topic show {t}")
    with pytest.raises(UnsupportedOption, match="-x is not supported"):
        build(forgetful, parse(forgetful, ["-t", "T", "-x", "C"]))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing"], 2, "there is no subcommand 'nothing'"),
        (["topicStatus"], 2, "-t (topic) is missing"),
        (["exportPopRecord"], 1, "RocksDB is not used"),
        (["getLiteTopicInfo"], 1, "lite topics are not supported"),
        (["switchTimerEngine"], 1, "there is only one timer engine"),
        (["producerConnection", "-g", "G"], 2, "-t (topic) is missing"),
        (["exportConfigs"], 2, "-c (clusterName) is missing"),
        (["getControllerConfig", "-a", "x"], 1, "no controller"),
        (["electMaster", "-a", "x"], 2, "-bn (brokerName) is missing"),
        (["help", "nothing"], 2, "there is no subcommand"),
    ],
)
def test_errors_are_one_line(
    words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert told in error
    assert error.count("\n") == 1


def test_help_lists_all_and_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ALIASES)
    assert run(["help", "topicStatus"]) == 0
    assert "-t, --topic VALUE" in capsys.readouterr().out
    assert run(["topicStatus", "-h"]) == 0
    assert "translated to: tianzhou topic show" in capsys.readouterr().out
    assert command.app.registered_commands
