import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Stock consumers that let the broker share out the queues and pop.
 *
 * <p>What only 5.x has is called by name, since every program here is compiled with 4.9, too.
 */
public final class PopShell extends JsonProgram {
    private static final int HEARTBEAT_MS = 1_000;
    private static final long FOREVER_MS = 600_000;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new PopShell().serve();
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
                producer.setDefaultTopicQueueNums(request.getIntValue("queues"));
                producer.start();
                producers.put(name, producer);
                return "started";
            case "send":
                for (Object body : request.getJSONArray("bodies")) {
                    producers.get(name).send(new Message(request.getString("topic"),
                        body.toString().getBytes(StandardCharsets.UTF_8)));
                }
                return "sent";
            case "start_consumer":
                return startConsumer(request);
            case "stop_consumer":
                consumers.remove(name).shutdown();
                return "stopped";
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPollNameServerInterval(HEARTBEAT_MS);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.getBooleanValue("pop")) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            DefaultMQPushConsumer.class.getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, request.getLongValue("invisible_ms"));
            DefaultMQPushConsumer.class.getMethod("setPopBatchNums", int.class)
                .invoke(consumer, request.getIntValue("batch"));
        }
        int succeedAfter = request.getIntValue("succeed_after");
        boolean hangs = request.getBooleanValue("hangs_first");
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
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
                event.put("nowMs", System.currentTimeMillis());
                emit(event);
                good = good && message.getReconsumeTimes() >= succeedAfter;
                if (hangs && message.getReconsumeTimes() == 0) {
                    sleep();
                }
            }
            return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        consumers.put(name, consumer);
        return "started";
    }

    private static void sleep() {
        try {
            Thread.sleep(FOREVER_MS);
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }
}
