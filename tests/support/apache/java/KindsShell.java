import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Stock clients with transactions, order, replies and traces, and the stock administration.
 * What listeners see appears as {"event": "message", ...}, with
 * the listener as "consumer"; checks of a producer P appear as those of "P-checks".
 */
public final class KindsShell extends JsonProgram {
    private static final long REQUEST_MS = 60_000;
    /** A client of 5.x drops a heartbeat that it wants to send while another is under way. */
    private static final int HEARTBEAT_MS = 1_000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private DefaultMQAdminExt admin;

    public static void main(String[] args) throws Exception {
        new KindsShell().serve();
    }

    private void show(String listener, MessageExt message) {
        JSONObject event = describe(message);
        event.put("event", "message");
        event.put("consumer", listener);
        emit(event);
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (request.getString("verb")) {
            case "start_transactions":
                return startTransactions(request);
            case "send_transaction":
                return sendTransaction((TransactionMQProducer) producers.get(name), request);
            case "start_producer":
                return startProducer(request);
            case "send":
                return send(producers.get(name), request);
            case "request":
                return ask(producers.get(name), request);
            case "stop_producer":
                producers.remove(name).shutdown();
                return "stopped";
            case "start_consumer":
                return startConsumer(request);
            case "stop_consumer":
                consumers.remove(name).shutdown();
                return "stopped";
            case "client_id":
                return consumers.get(name).buildMQClientId();
            case "queues":
                return queuesOf(consumers.get(name), request.getString("topic"));
            case "start_admin":
                return startAdmin(request);
            case "stop_admin":
                admin.shutdown();
                return "stopped";
            default:
                return administrate(request);
        }
    }

    /** Signs requests if the request names an account; "secret" is its secret key. */
    private static RPCHook account(JSONObject request) {
        String key = request.getString("account");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, request.getString("secret")));
    }

    // -- transactions ------------------------------------------------------------------------------

    /** Each message carries what its local transaction and its check shall say. */
    private String startTransactions(JSONObject request) throws Exception {
        String name = request.getString("name");
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"), account(request));
        reach(producer, request);
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(30_000);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.valueOf(message.getUserProperty("local"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                show(name + "-checks", message);
                return LocalTransactionState.valueOf(message.getUserProperty("check"));
            }
        });
        producer.start();
        producers.put(name, producer);
        return "started";
    }

    private static Object sendTransaction(TransactionMQProducer producer, JSONObject request) throws Exception {
        Message message = message(request);
        message.putUserProperty("local", request.getString("local"));
        message.putUserProperty("check", request.getString("check"));
        if (request.containsKey("delay_level")) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        if (request.containsKey("immune_s")) {
            // So long nobody is asked how it ended.
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
                request.getString("immune_s"));
        }
        var sent = producer.sendMessageInTransaction(message, null);
        JSONObject result = new JSONObject();
        result.put("status", sent.getSendStatus().name());
        result.put("state", sent.getLocalTransactionState().name());
        result.put("msgId", sent.getMsgId());
        result.put("transactionId", sent.getTransactionId());
        return result;
    }

    // -- sending -----------------------------------------------------------------------------------

    private String startProducer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQProducer producer = new DefaultMQProducer(
            name, account(request), request.getBooleanValue("trace"), null);
        reach(producer, request);
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(30_000);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        producer.start();
        producers.put(name, producer);
        return "started";
    }

    private static Message message(JSONObject request) {
        return new Message(request.getString("topic"), request.getString("tags"), request.getString("keys"),
            request.getString("body").getBytes(StandardCharsets.UTF_8));
    }

    /** Send bodies one after the other, all to the queue that a key selects if there is one. */
    private static Object send(DefaultMQProducer producer, JSONObject request) throws Exception {
        JSONArray results = new JSONArray();
        for (Object body : request.getJSONArray("bodies")) {
            request.put("body", body);
            var sent = request.containsKey("queue_id")
                ? producer.send(message(request),
                    (queues, chosenFor, key) -> queues.get((Integer) key), request.getInteger("queue_id"))
                : producer.send(message(request));
            JSONObject result = new JSONObject();
            result.put("status", sent.getSendStatus().name());
            result.put("msgId", sent.getMsgId());
            result.put("offsetMsgId", sent.getOffsetMsgId());
            results.add(result);
        }
        return results;
    }

    private static Object ask(DefaultMQProducer producer, JSONObject request) throws Exception {
        Message reply = producer.request(message(request), REQUEST_MS);
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    // -- consuming ---------------------------------------------------------------------------------

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(
                request.getString("group"), account(request), new AllocateMessageQueueAveragely(),
                request.getBooleanValue("trace"), null);
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        long pauseMs = request.getLongValue("pause_ms");
        switch (request.getString("way")) {
            case "orderly":
                // What cannot be handled is tried again after a moment, so often, before it is given up.
                String failing = request.getString("failing");
                consumer.setSuspendCurrentQueueTimeMillis(100);
                if (request.containsKey("max_reconsume_times")) {
                    consumer.setMaxReconsumeTimes(request.getIntValue("max_reconsume_times"));
                }
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    boolean good = true;
                    for (MessageExt message : messages) {
                        show(name, message);
                        pause(pauseMs);
                        good = good && !new String(message.getBody(), StandardCharsets.UTF_8).equals(failing);
                    }
                    return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                });
                break;
            case "reply":
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    for (MessageExt message : messages) {
                        show(name, message);
                        reply(producers.get(request.getString("producer")), message);
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                break;
            case "later":
                // Each message is given back once.
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    boolean again = false;
                    for (MessageExt message : messages) {
                        show(name, message);
                        again = again || message.getReconsumeTimes() == 0;
                    }
                    return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                break;
            default:
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    for (MessageExt message : messages) {
                        show(name, message);
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
        }
        consumer.start();
        consumers.put(name, consumer);
        return "started";
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static void reply(DefaultMQProducer producer, MessageExt asked) {
        try {
            String body = "re: " + new String(asked.getBody(), StandardCharsets.UTF_8);
            producer.send(MessageUtil.createReplyMessage(asked, body.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    // -- administration ----------------------------------------------------------------------------

    private String startAdmin(JSONObject request) throws Exception {
        admin = new DefaultMQAdminExt();
        reach(admin, request);
        admin.setInstanceName("kinds-admin");
        admin.start();
        return "started";
    }

    private Object administrate(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        String group = request.getString("group");
        String client = request.getString("client");
        JSONObject result = new JSONObject();
        switch (request.getString("verb")) {
            case "view":
                return describe(admin.viewMessage(topic, request.getString("message_id")));
            case "query":
                JSONArray found = new JSONArray();
                for (MessageExt each : admin.queryMessage(topic, request.getString("key"), 32, 0, Long.MAX_VALUE)
                    .getMessageList()) {
                    found.add(describe(each));
                }
                return found;
            case "running_info":
                var info = admin.getConsumerRunningInfo(group, client, request.getBooleanValue("jstack"));
                result.put("orderly", info.getProperties().getProperty("PROP_CONSUMEORDERLY"));
                result.put("queues", info.getMqTable().size());
                result.put("jstack", info.getJstack());
                return result;
            case "consume_directly":
                var consumed = admin.consumeMessageDirectly(group, client, topic, request.getString("message_id"));
                result.put("result", consumed.getConsumeResult().name());
                result.put("remark", consumed.getRemark());
                return result;
            case "reset_offset":
                admin.resetOffsetByTimestamp(topic, group, request.getLongValue("time_ms"), true)
                    .forEach((queue, offset) -> result.put("" + queue.getQueueId(), offset));
                return result;
            case "consume_status":
                admin.getConsumeStatus(topic, group, client).forEach((each, offsets) -> {
                    JSONObject byQueue = new JSONObject();
                    offsets.forEach((queue, offset) -> byQueue.put("" + queue.getQueueId(), offset));
                    result.put(each, byQueue);
                });
                return result;
            case "decode_trace":
                JSONArray traces = new JSONArray();
                for (var trace : TraceDataEncoder.decoderFromTraceDataString(request.getString("body"))) {
                    JSONObject one = new JSONObject();
                    one.put("type", trace.getTraceType().name());
                    one.put("topic", trace.getTraceBeans().get(0).getTopic());
                    one.put("msgId", trace.getTraceBeans().get(0).getMsgId());
                    one.put("success", trace.isSuccess());
                    traces.add(one);
                }
                return traces;
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    private static JSONObject describe(MessageExt message) {
        JSONObject described = new JSONObject();
        described.put("topic", message.getTopic());
        described.put("queueId", message.getQueueId());
        described.put("queueOffset", message.getQueueOffset());
        described.put("transactionId", message.getTransactionId());
        described.put("msgId", message.getMsgId());
        described.put("reconsumeTimes", message.getReconsumeTimes());
        described.put("properties", message.getProperties());
        described.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        return described;
    }
}
