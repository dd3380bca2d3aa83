import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Stock clients and the stock mqadmin behind one JVM; consumed messages appear as
 * {"event": "message", ...}.
 */
public final class Shell extends JsonProgram {
    private static final long LOOK_MS = 50;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private Scenario scenario;
    private SendLoad load;

    public static void main(String[] args) throws Exception {
        new Shell().serve();
    }

    @Override
    Object handle(JSONObject request) throws Exception {
        switch (request.getString("verb")) {
            case "admin":
                return admin(request.getJSONArray("args"), request.getLongValue("interrupt_after_ms"));
            case "sub_commands":
                return subCommands();
            case "start_producer":
                return startProducer(request);
            case "send":
                return send(request);
            case "start_load":
                load = new SendLoad(producers.get(request.getString("name")), request.getString("topic"),
                    request.getIntValue("threads"));
                return "started";
            case "load_count":
                return load.count();
            case "load_longest_ms":
                return load.longestMs();
            case "stop_load":
                return load.stop();
            case "publish_queues":
                return publishQueues(request);
            case "stop_producer":
                producers.remove(request.getString("name")).shutdown();
                return "stopped";
            case "start_consumer":
                return startConsumer(request);
            case "scenario":
                if (scenario == null) {
                    scenario = new Scenario(request.getString("namesrv"));
                }
                return scenario.run(request.getString("step"));
            case "stop_consumer":
                consumers.remove(request.getString("name")).shutdown();
                return "stopped";
            default:
                throw new IllegalArgumentException("no such verb: " + request);
        }
    }

    /** What mqadmin prints; a command that never ends by itself is interrupted after some time. */
    private static String admin(JSONArray args, long interruptAfterMs) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream console = System.out;
        PrintStream errors = System.err;
        PrintStream capture = new PrintStream(bytes, true, "UTF-8");
        System.setOut(capture);
        System.setErr(capture);
        try {
            forgetCommands();
            Thread command = new Thread(() -> MQAdminStartup.main(args.toArray(new String[0])));
            command.start();
            long deadlineMs = interruptAfterMs == 0 ? Long.MAX_VALUE : System.currentTimeMillis() + interruptAfterMs;
            while (command.isAlive()) {
                command.join(LOOK_MS);
                if (isOnlyWaitingToEnd(command) || System.currentTimeMillis() > deadlineMs) {
                    command.interrupt();
                }
            }
        } finally {
            System.setOut(console);
            System.setErr(errors);
        }
        return bytes.toString("UTF-8");
    }

    /** The sub commands of mqadmin as it knows them itself: by their names, the options of each. */
    private static Object subCommands() throws Exception {
        forgetCommands();
        MQAdminStartup.initCommand();
        JSONObject commands = new JSONObject();
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                for (Object command : (List<?>) field.get(null)) {
                    commands.put(((SubCommand) command).commandName(), optionsOf((SubCommand) command));
                }
            }
        }
        return commands;
    }

    private static JSONArray optionsOf(SubCommand command) {
        JSONArray options = new JSONArray();
        for (Object each : command.buildCommandlineOptions(new Options()).getOptions()) {
            Option option = (Option) each;
            JSONObject described = new JSONObject();
            described.put("short", option.getOpt());
            described.put("long", option.getLongOpt());
            described.put("takesValue", option.hasArg());
            described.put("required", option.isRequired());
            described.put("says", option.getDescription());
            options.add(described);
        }
        return options;
    }

    /** Each run makes its commands anew; those of the last run would be found first, with their used clients. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /**
     * Whether a client of 5.x shuts down and waits for its own thread of events: that one looks for the
     * end every three seconds only, which a command every now and then would spend doing nothing.
     */
    private static boolean isOnlyWaitingToEnd(Thread command) {
        boolean joins = false;
        for (StackTraceElement frame : command.getStackTrace()) {
            joins = joins || frame.getMethodName().equals("join");
            if (joins && frame.getClassName().endsWith(".NettyRemotingClient") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    private String startProducer(JSONObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(request.getString("group"));
        reach(producer, request);
        producer.setInstanceName(request.getString("name"));
        producer.setSendMsgTimeout(request.getIntValue("timeout_ms"));
        producer.setRetryTimesWhenSendFailed(5);
        if (request.containsKey("poll_ms")) {
            producer.setPollNameServerInterval(request.getIntValue("poll_ms"));
        }
        producer.start();
        producers.put(request.getString("name"), producer);
        return "started";
    }

    private Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = producers.get(request.getString("name"));
        JSONArray results = new JSONArray();
        for (Object body : request.getJSONArray("bodies")) {
            Message message = new Message(request.getString("topic"), request.getString("tags"),
                request.getString("keys"), ((String) body).getBytes(StandardCharsets.UTF_8));
            SendResult sent = producer.send(message);
            JSONObject result = new JSONObject();
            result.put("status", sent.getSendStatus().name());
            result.put("msgId", sent.getMsgId());
            result.put("offsetMsgId", sent.getOffsetMsgId());
            result.put("brokerName", sent.getMessageQueue().getBrokerName());
            result.put("queueId", sent.getMessageQueue().getQueueId());
            result.put("queueOffset", sent.getQueueOffset());
            results.add(result);
        }
        return results;
    }

    private Object publishQueues(JSONObject request) throws Exception {
        DefaultMQProducer producer = producers.get(request.getString("name"));
        List<String> queues = new ArrayList<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(request.getString("topic"))) {
            queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
        }
        return queues;
    }

    private String startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        reach(consumer, request);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPollNameServerInterval(1000);
        consumer.subscribe(request.getString("topic"), request.getString("tags"));
        if (request.getBooleanValue("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                emitAll(name, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                emitAll(name, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        consumers.put(name, consumer);
        return "started";
    }

    private void emitAll(String consumer, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            emit(describe(consumer, message));
        }
    }

    private static JSONObject describe(String consumer, MessageExt message) {
        JSONObject event = new JSONObject();
        event.put("event", "message");
        event.put("consumer", consumer);
        event.put("topic", message.getTopic());
        event.put("brokerName", message.getBrokerName());
        event.put("queueId", message.getQueueId());
        event.put("queueOffset", message.getQueueOffset());
        event.put("reconsumeTimes", message.getReconsumeTimes());
        event.put("msgId", message.getMsgId());
        event.put("tags", message.getTags());
        event.put("keys", message.getKeys());
        event.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        return event;
    }
}
