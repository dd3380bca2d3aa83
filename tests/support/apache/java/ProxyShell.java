import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Stock clients that speak gRPC, for use with Apache's proxy. */
public final class ProxyShell extends JsonProgram {
    private static final Duration AWAIT = Duration.ofSeconds(5);

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, Producer> producers = new HashMap<>();
    private final Map<String, PushConsumer> pushConsumers = new HashMap<>();
    private final Map<String, SimpleConsumer> simpleConsumers = new HashMap<>();
    private final Map<String, MessageView> received = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        new ProxyShell().serve();
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (request.getString("verb")) {
            case "start_producer":
                producers.put(name, provider.newProducerBuilder()
                    .setClientConfiguration(reached(request))
                    .setTopics(request.getJSONArray("topics").toArray(new String[0]))
                    .setTransactionChecker(view -> {
                        emit(shown(name + "-check", view));
                        return TransactionResolution.COMMIT;
                    })
                    .build());
                return "started";
            case "send":
                return send(producers.get(name), request);
            case "recall":
                return producers.get(name)
                    .recallMessage(request.getString("topic"), request.getString("handle")).getMessageId().toString();
            case "start_push":
                pushConsumers.put(name, provider.newPushConsumerBuilder()
                    .setClientConfiguration(reached(request))
                    .setConsumerGroup(request.getString("group"))
                    .setSubscriptionExpressions(
                        Collections.singletonMap(request.getString("topic"), FilterExpression.SUB_ALL))
                    .setMessageListener(view -> {
                        emit(shown(name, view));
                        return view.getDeliveryAttempt() > request.getIntValue("failures")
                            ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
                    })
                    .build());
                return "started";
            case "start_simple":
                simpleConsumers.put(name, provider.newSimpleConsumerBuilder()
                    .setClientConfiguration(reached(request))
                    .setConsumerGroup(request.getString("group"))
                    .setSubscriptionExpressions(
                        Collections.singletonMap(request.getString("topic"), FilterExpression.SUB_ALL))
                    .setAwaitDuration(AWAIT)
                    .build());
                return "started";
            case "receive":
                JSONArray found = new JSONArray();
                for (MessageView view : simpleConsumers.get(name).receive(
                    request.getIntValue("count"), Duration.ofMillis(request.getLongValue("invisible_ms")))) {
                    JSONObject one = shown(name, view);
                    received.put(one.getString("body"), view);
                    found.add(one);
                }
                return found;
            case "ack":
                simpleConsumers.get(name).ack(received.get(request.getString("body")));
                return "acknowledged";
            case "change_invisible":
                simpleConsumers.get(name).changeInvisibleDuration(received.get(request.getString("body")),
                    Duration.ofMillis(request.getLongValue("invisible_ms")));
                return "changed";
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    private static ClientConfiguration reached(JSONObject request) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(request.getString("endpoints"))
            .setRequestTimeout(Duration.ofSeconds(30))
            .enableSsl(false)
            .build();
    }

    private Object send(Producer producer, JSONObject request) throws Exception {
        JSONArray receipts = new JSONArray();
        for (Object body : request.getJSONArray("bodies")) {
            MessageBuilder builder = provider.newMessageBuilder()
                .setTopic(request.getString("topic"))
                .setTag("tag")
                .setKeys("key-" + body)
                .setBody(body.toString().getBytes(StandardCharsets.UTF_8));
            if (request.containsKey("message_group")) {
                builder.setMessageGroup(request.getString("message_group"));
            }
            if (request.containsKey("delay_ms")) {
                builder.setDeliveryTimestamp(System.currentTimeMillis() + request.getLongValue("delay_ms"));
            }
            Message message = builder.build();
            SendReceipt receipt;
            if (request.containsKey("transaction")) {
                Transaction transaction = producer.beginTransaction();
                receipt = producer.send(message, transaction);
                if (request.getString("transaction").equals("commit")) {
                    transaction.commit();
                } else if (request.getString("transaction").equals("roll_back")) {
                    transaction.rollback();
                }
            } else {
                receipt = producer.send(message);
            }
            JSONObject told = new JSONObject();
            told.put("id", receipt.getMessageId().toString());
            told.put("recallHandle", receipt.getRecallHandle());
            receipts.add(told);
        }
        return receipts;
    }

    private static JSONObject shown(String name, MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        JSONObject shown = new JSONObject();
        shown.put("event", "message");
        shown.put("consumer", name);
        shown.put("topic", view.getTopic());
        shown.put("msgId", view.getMessageId().toString());
        shown.put("attempt", view.getDeliveryAttempt());
        shown.put("body", new String(bytes, StandardCharsets.UTF_8));
        shown.put("nowMs", System.currentTimeMillis());
        return shown;
    }
}
