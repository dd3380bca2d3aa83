import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Stock clients that delay, time, recall and fail.
 *
 * <p>What only 5.x has is called by name, so that the same program runs with 4.9.
 */
public final class DelayShell extends JsonProgram {
    private static final int HEARTBEAT_MS = 1_000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new DelayShell().serve();
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (request.getString("verb")) {
            case "start_producer":
                DefaultMQProducer producer = new DefaultMQProducer(name);
                reach(producer, request);
                producer.setInstanceName(name);
                producer.setSendMsgTimeout(30_000);
                producer.start();
                producers.put(name, producer);
                return "started";
            case "send":
                return send(producers.get(name), request);
            case "recall":
                return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                    .invoke(producers.get(name), request.getString("topic"), request.getString("handle"));
            case "start_consumer":
                return startConsumer(request);
            case "stop_consumer":
                consumers.remove(name).shutdown();
                return "stopped";
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    private static Object send(DefaultMQProducer producer, JSONObject request) throws Exception {
        Message message = new Message(request.getString("topic"), request.getString("tags"),
            request.getString("body").getBytes(StandardCharsets.UTF_8));
        if (request.containsKey("delay_level")) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        long before = System.currentTimeMillis();
        time(message, "setDeliverTimeMs", "TIMER_DELIVER_MS",
            request.containsKey("deliver_in_ms") ? before + request.getLong("deliver_in_ms") : null);
        time(message, "setDelayTimeMs", "TIMER_DELAY_MS", request.getLong("delay_ms"));
        time(message, "setDelayTimeSec", "TIMER_DELAY_SEC", request.getLong("delay_sec"));
        SendResult sent = producer.send(message);
        JSONObject result = new JSONObject();
        result.put("status", sent.getSendStatus().name());
        result.put("msgId", sent.getMsgId());
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("beforeMs", before);
        try {
            result.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(sent));
        } catch (NoSuchMethodException old) {
            result.put("recallHandle", null);
        }
        return result;
    }

    /** By the client's own method if it has one, else by the property, as users of 4.9 do. */
    private static void time(Message message, String method, String property, Long value) throws Exception {
        if (value == null) {
            return;
        }
        try {
            Message.class.getMethod(method, long.class).invoke(message, value.longValue());
        } catch (NoSuchMethodException old) {
            MessageAccessor.putProperty(message, property, value.toString());
        }
    }

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        // The retry topic of a new group is there some moments after the group; 30 s is the default.
        consumer.setPollNameServerInterval(HEARTBEAT_MS);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(request.getIntValue("max_reconsume_times"));
        }
        int succeedAfter = request.getIntValue("succeed_after");
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.currentTimeMillis();
            boolean good = true;
            for (MessageExt message : messages) {
                JSONObject event = new JSONObject();
                event.put("event", "message");
                event.put("consumer", name);
                event.put("topic", message.getTopic());
                event.put("msgId", message.getMsgId());
                event.put("reconsumeTimes", message.getReconsumeTimes());
                event.put("properties", message.getProperties());
                event.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                event.put("nowMs", now);
                event.put("storeMs", message.getStoreTimestamp());
                emit(event);
                good = good && message.getReconsumeTimes() >= succeedAfter;
            }
            return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        consumers.put(name, consumer);
        return "started";
    }
}
