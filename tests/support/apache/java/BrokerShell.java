import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Stock clients as an application of a broker uses them. What push consumers get appears as
 * {"event": "message", ...}; clients are named by the request that starts them.
 */
public final class BrokerShell extends JsonProgram {
    private static final long PATIENCE_MS = 20_000;
    private static final long POLL_MS = 300;
    /**
     * A consumer of 5.x drops a heartbeat that it wants to send while another is under way. Until the next
     * one the broker then refuses its pulls, as Apache's own does; by default that is 30 s.
     */
    private static final int HEARTBEAT_MS = 1_000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private final Map<String, DefaultLitePullConsumer> liteConsumers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new BrokerShell().serve();
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (request.getString("verb")) {
            case "start_producer":
                return startProducer(request);
            case "send":
                return send(producers.get(name), request);
            case "query":
                return describe(producers.get(name).queryMessage(request.getString("topic"),
                    request.getString("key"), 32, 0, Long.MAX_VALUE).getMessageList());
            case "view":
                return describe(
                    producers.get(name).viewMessage(request.getString("topic"), request.getString("message_id")));
            case "stop_producer":
                producers.remove(name).shutdown();
                return "stopped";
            case "start_consumer":
                return startConsumer(request);
            case "queues":
                return queuesOf(consumers.get(name), request.getString("topic"));
            case "commit":
                return commit(consumers.get(name), request.getString("topic"));
            case "stop_consumer":
                consumers.remove(name).shutdown();
                return "stopped";
            case "start_lite_consumer":
                return startLiteConsumer(request);
            case "poll":
                return poll(liteConsumers.get(name), request.getIntValue("count"));
            case "seek":
                return seek(liteConsumers.get(name), request);
            case "stop_lite_consumer":
                liteConsumers.remove(name).shutdown();
                return "stopped";
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    // -- sending -----------------------------------------------------------------------------------

    private String startProducer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQProducer producer = new DefaultMQProducer(name);
        reach(producer, request);
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(30_000);
        // A message must be counted once, so it is sent once.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setVipChannelEnabled(request.getBooleanValue("vip"));
        if (request.containsKey("compression")) {
            setCompressType(producer, request.getString("compression"));
        }
        producer.start();
        producers.put(name, producer);
        return "started";
    }

    /** Producers of 4.9 have no such setter; they use zlib unless the whole JVM is told otherwise. */
    private static void setCompressType(DefaultMQProducer producer, String type) throws Exception {
        for (Method method : DefaultMQProducer.class.getMethods()) {
            if (method.getName().equals("setCompressType")) {
                Method of = method.getParameterTypes()[0].getMethod("of", String.class);
                method.invoke(producer, of.invoke(null, type));
                return;
            }
        }
        if (!type.equals("ZLIB")) {
            throw new IllegalArgumentException("producers of this version cannot be told to use " + type);
        }
    }

    /** Send in one of the ways of the client; the results in the order of the messages. */
    private Object send(DefaultMQProducer producer, JSONObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object each : request.getJSONArray("messages")) {
            messages.add(message(request.getString("topic"), (JSONObject) each));
        }
        JSONArray results = new JSONArray();
        switch (request.getString("way")) {
            case "sync":
                for (Message message : messages) {
                    results.add(describe(producer.send(message)));
                }
                return results;
            case "async":
                return sendAsync(producer, messages);
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return results;
            case "batch":
                results.add(describe(producer.send(messages)));
                return results;
            case "selector":
                for (Message message : messages) {
                    results.add(describe(producer.send(message,
                        (queues, chosenFor, key) -> queues.get((Integer) key % queues.size()),
                        request.getInteger("selector_key"))));
                }
                return results;
            default:
                throw new IllegalArgumentException("no such way: " + request);
        }
    }

    private static Message message(String topic, JSONObject described) {
        Message message = new Message(topic, described.getString("tags"), described.getString("keys"),
            described.getString("body").getBytes(StandardCharsets.UTF_8));
        JSONObject properties = described.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, value.toString()));
        }
        int delayLevel = described.getIntValue("delay_level");
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        return message;
    }

    private static Object sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        Object[] results = new Object[messages.size()];
        CountDownLatch answered = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int place = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[place] = describe(result);
                    answered.countDown();
                }

                @Override
                public void onException(Throwable problem) {
                    results[place] = problem.toString();
                    answered.countDown();
                }
            });
        }
        if (!answered.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(answered.getCount() + " of " + results.length + " sends unanswered");
        }
        return results;
    }

    private static JSONObject describe(SendResult sent) {
        JSONObject result = new JSONObject();
        result.put("status", sent.getSendStatus().name());
        result.put("msgId", sent.getMsgId());
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("queueId", sent.getMessageQueue().getQueueId());
        result.put("queueOffset", sent.getQueueOffset());
        return result;
    }

    // -- push consumers ----------------------------------------------------------------------------

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        String topic = request.getString("topic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from_where")));
        if (request.containsKey("from_time_ms")) {
            Date from = new Date(request.getLongValue("from_time_ms"));
            consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(from));
        }
        setMessageModel(consumer, request.getString("model"));
        if (request.containsKey("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(request.getString("sql")));
        } else {
            consumer.subscribe(topic, request.getString("tags"));
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                JSONObject event = describe(message);
                event.put("event", "message");
                event.put("consumer", name);
                emit(event);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (Exception problem) {
            consumer.shutdown();
            throw problem;
        }
        consumers.put(name, consumer);
        return "started";
    }

    /** The enum lives in different packages in 4.9 and 5.x. */
    private static void setMessageModel(DefaultMQPushConsumer consumer, String model) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Method valueOf = method.getParameterTypes()[0].getMethod("valueOf", String.class);
                method.invoke(consumer, valueOf.invoke(null, model));
            }
        }
    }

    private static List<MessageQueue> held(DefaultMQPushConsumer consumer, String topic) {
        List<MessageQueue> held = new ArrayList<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(topic) && !process.isDropped()) {
                held.add(queue);
            }
        });
        held.sort(null);
        return held;
    }

    /** Commit now what a timer would every five seconds; returns what the broker has then, by queue id. */
    private static Map<String, Long> commit(DefaultMQPushConsumer consumer, String topic) {
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        OffsetStore store = consumer.getDefaultMQPushConsumerImpl().getOffsetStore();
        Map<String, Long> committed = new TreeMap<>();
        for (MessageQueue queue : held(consumer, topic)) {
            committed.put("" + queue.getQueueId(), store.readOffset(queue, ReadOffsetType.READ_FROM_STORE));
        }
        return committed;
    }

    // -- lite pull consumers -----------------------------------------------------------------------

    private String startLiteConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setAutoCommit(false);
        consumer.start();
        liteConsumers.put(name, consumer);
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(request.getString("topic"));
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        return "started";
    }

    /** At least so many messages, unless patience ends, and whatever else is there. */
    private static Object poll(DefaultLitePullConsumer consumer, int count) {
        List<MessageExt> polled = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (polled.size() < count && System.currentTimeMillis() < deadline) {
            polled.addAll(consumer.poll(POLL_MS));
        }
        polled.addAll(consumer.poll(POLL_MS));
        return describe(polled);
    }

    private static Object seek(DefaultLitePullConsumer consumer, JSONObject request) throws Exception {
        for (MessageQueue queue : consumer.fetchMessageQueues(request.getString("topic"))) {
            if (queue.getQueueId() == request.getIntValue("queue_id")) {
                consumer.seek(queue, request.getLongValue("queue_offset"));
                return "sought";
            }
        }
        throw new IllegalArgumentException("no such queue: " + request);
    }

    // -- messages ----------------------------------------------------------------------------------

    private static JSONArray describe(List<MessageExt> messages) {
        JSONArray described = new JSONArray();
        for (MessageExt message : messages) {
            described.add(describe(message));
        }
        return described;
    }

    private static JSONObject describe(MessageExt message) {
        JSONObject described = new JSONObject();
        described.put("topic", message.getTopic());
        described.put("queueId", message.getQueueId());
        described.put("queueOffset", message.getQueueOffset());
        described.put("reconsumeTimes", message.getReconsumeTimes());
        described.put("storeSize", message.getStoreSize());
        described.put("tags", message.getTags());
        described.put("keys", message.getKeys());
        described.put("properties", message.getProperties());
        described.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        return described;
    }
}
