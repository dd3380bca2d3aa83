import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Stock consumers that share groups with other clients, and the stock allocation strategies.
 *
 * <p>A consumed message appears as {"event": "message", "consumer": NAME, "body": TEXT, "queue": ID}.
 */
public final class MixedShell extends JsonProgram {
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        new MixedShell().serve();
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        switch (request.getString("verb")) {
            case "start_consumer":
                return startConsumer(request);
            case "queues":
                return queuesOf(consumers.get(request.getString("name")), request.getString("topic"));
            case "stop_consumer":
                consumers.remove(request.getString("name")).shutdown();
                return "stopped";
            case "allocate":
                return allocate(request);
            default:
                throw new IllegalArgumentException("unknown verb");
        }
    }

    // -- consumers ---------------------------------------------------------------------------------

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(strategy(request));
        consumer.subscribe(request.getString("topic"), "*");
        if (request.getBooleanValue("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                tell(name, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                tell(name, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        consumers.put(name, consumer);
        return consumer.buildMQClientId();
    }

    private void tell(String name, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            JSONObject event = new JSONObject();
            event.put("event", "message");
            event.put("consumer", name);
            event.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            event.put("queue", message.getQueueId());
            emit(event);
        }
    }

    // -- allocation --------------------------------------------------------------------------------

    /** The share of every client: lists of positions in the sorted list of queues, by sorted client id. */
    private static List<List<Integer>> allocate(JSONObject request) {
        List<MessageQueue> queues = new ArrayList<>();
        for (Object each : request.getJSONArray("queues")) {
            JSONArray parts = (JSONArray) each;
            queues.add(new MessageQueue(parts.getString(0), parts.getString(1), parts.getIntValue(2)));
        }
        List<String> ids = new ArrayList<>(request.getJSONArray("ids").toJavaList(String.class));
        Collections.sort(queues);
        Collections.sort(ids);
        List<List<Integer>> shares = new ArrayList<>();
        for (String id : ids) {
            List<Integer> share = new ArrayList<>();
            for (MessageQueue queue : strategy(request).allocate("group", id, queues, ids)) {
                share.add(queues.indexOf(queue));
            }
            shares.add(share);
        }
        return shares;
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject request) {
        switch (request.getString("strategy")) {
            case "averagely":
                return new AllocateMessageQueueAveragely();
            case "averagely_by_circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            case "by_machine_room":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(Collections.singletonList("r1")));
                return byRoom;
            case "machine_room_nearby":
                return new AllocateMachineRoomNearby(
                    new AllocateMessageQueueAveragely(),
                    new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return "room" + queue.getBrokerName().length() % 3;
                        }

                        @Override
                        public String consumerDeployIn(String clientId) {
                            return "room" + clientId.length() % 3;
                        }
                    });
            default:
                throw new IllegalArgumentException("unknown strategy");
        }
    }
}
