import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads every message of some queues with the stock client, and writes some.
 *
 * <p>Requests are lines on standard input, words between tabs; each is answered by a line on standard
 * output, {@code done} or {@code failed} with the reason.
 *
 * <p>{@code read NAMESRV BROKER FILE STRIDE TOPIC:QUEUES...} writes a line for each message found by queue
 * offset, and looks up each STRIDE-th of a queue by its id and by each of its keys as well.
 *
 * <p>{@code write NAMESRV BROKER FILE TOPIC:QUEUES COUNT} sends messages of several kinds and writes a line
 * for each that was acknowledged.
 */
public final class StoreReader {
    private static final int READERS = 4;
    private static final int ASKERS = 24;

    private StoreReader() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            try {
                serve(line.split("\t"));
                answers.println("done");
            } catch (Exception e) {
                e.printStackTrace();
                answers.println(("failed: " + e).replace('\n', ' '));
            }
            answers.flush();
        }
        // The clients are not shut down, which takes seconds each, and would keep the program alive.
        Runtime.getRuntime().halt(0);
    }

    private static void serve(String[] arguments) throws Exception {
        Path file = Paths.get(arguments[3]);
        try (BufferedWriter lines = Files.newBufferedWriter(file, StandardCharsets.UTF_8)) {
            if (arguments[0].equals("read")) {
                read(arguments, lines);
            } else {
                write(arguments, lines);
            }
        }
    }

    private static void read(String[] arguments, BufferedWriter lines) throws Exception {
        int stride = Integer.parseInt(arguments[4]);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("store_reader");
        consumer.setNamesrvAddr(arguments[1]);
        consumer.setMqClientApiTimeout(30_000);
        // A client of its own for each request: brokers come and go under one name.
        consumer.setInstanceName("reader-" + System.nanoTime());
        consumer.setConsumerPullTimeoutMillis(30_000);
        consumer.start();
        ExecutorService pool = Executors.newFixedThreadPool(READERS);
        ExecutorService askers = Executors.newFixedThreadPool(ASKERS);
        List<Future<List<String>>> found = new ArrayList<>();
        for (int i = 5; i < arguments.length; i++) {
            String[] parts = arguments[i].split(":");
            for (int queue = 0; queue < Integer.parseInt(parts[1]); queue++) {
                MessageQueue place = new MessageQueue(parts[0], arguments[2], queue);
                found.add(pool.submit(() -> readQueue(consumer, place, stride, askers)));
            }
        }
        for (Future<List<String>> queue : found) {
            for (String line : queue.get()) {
                lines.write(line);
                lines.newLine();
            }
        }
        pool.shutdown();
        askers.shutdown();
    }

    private static List<String> readQueue(DefaultMQPullConsumer consumer, MessageQueue queue, int stride,
        ExecutorService askers) throws Exception {
        List<String> lines = new ArrayList<>();
        List<Future<?>> asked = new ArrayList<>();
        long at = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        while (at < end) {
            PullResult result = consumer.pull(queue, "*", at, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + at + ": " + result);
            }
            List<MessageExt> messages = result.getMsgFoundList();
            for (MessageExt message : messages) {
                lines.add(describe(message));
            }
            // An answer takes long on its way and little of anything else, so many are under way.
            asked.add(askers.submit(() -> lookUpAll(consumer, messages, stride)));
            at = result.getNextBeginOffset();
        }
        for (Future<?> one : asked) {
            one.get();
        }
        return lines;
    }

    private static Void lookUpAll(DefaultMQPullConsumer consumer, List<MessageExt> messages, int stride)
        throws Exception {
        for (MessageExt message : messages) {
            if (message.getQueueOffset() % stride == 0) {
                lookUp(consumer, message);
            }
        }
        return null;
    }

    private static void lookUp(DefaultMQPullConsumer consumer, MessageExt message) throws Exception {
        // The id of a message is its unique key where it has one, so the one with the place is asked for.
        String id = placeId(message);
        MessageExt byId = consumer.viewMessage(message.getTopic(), id);
        if (!describe(byId).equals(describe(message))) {
            throw new IllegalStateException("by id " + id + ": " + describe(byId));
        }
        List<String> keys = new ArrayList<>();
        if (message.getKeys() != null) {
            for (String key : message.getKeys().split(" ")) {
                keys.add(key);
            }
        }
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (unique != null) {
            // The client compares the keys of what it found with the question, except by this way.
            MessageExt byUnique = consumer.viewMessage(message.getTopic(), unique);
            if (!describe(byUnique).equals(describe(message))) {
                throw new IllegalStateException("by unique key " + unique + ": " + describe(byUnique));
            }
        }
        for (String key : keys) {
            QueryResult result = consumer.queryMessage(message.getTopic(), key, 32, 0, Long.MAX_VALUE);
            boolean there = false;
            for (MessageExt one : result.getMessageList()) {
                there |= describe(one).equals(describe(message));
            }
            if (!there) {
                throw new IllegalStateException("by key " + key + ": " + result);
            }
        }
    }

    private static String placeId(MessageExt message) {
        return MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset());
    }

    private static String describe(MessageExt message) {
        CRC32 crc = new CRC32();
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        crc.update(body);
        return String.join("\t", message.getTopic(), "" + message.getQueueId(), "" + message.getQueueOffset(),
            "" + message.getCommitLogOffset(), "" + message.getStoreTimestamp(), message.getBornHostString(),
            "" + message.getTags(), "" + message.getKeys(), "" + body.length, "" + crc.getValue());
    }

    private static void write(String[] arguments, BufferedWriter lines) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("store_writer");
        producer.setNamesrvAddr(arguments[1]);
        producer.setMqClientApiTimeout(30_000);
        producer.setInstanceName("writer-" + System.nanoTime());
        producer.setSendMsgTimeout(30_000);
        producer.setCompressMsgBodyOverHowmuch(3000);
        producer.start();
        String[] parts = arguments[4].split(":");
        int queues = Integer.parseInt(parts[1]);
        int count = Integer.parseInt(arguments[5]);
        for (int i = 0; i < count; i++) {
            MessageQueue queue = new MessageQueue(parts[0], arguments[2], i % queues);
            if (i % 50 == 0) {
                List<Message> batch = new ArrayList<>();
                for (int j = 0; j < 5; j++) {
                    batch.add(message(parts[0], i, j));
                }
                SendResult sent = producer.send(batch, queue);
                for (int j = 0; j < 5; j++) {
                    report(lines, batch.get(j), queue, sent.getQueueOffset() + j);
                }
            } else {
                Message one = message(parts[0], i, 0);
                SendResult sent = producer.send(one, queue);
                report(lines, one, queue, sent.getQueueOffset());
            }
        }
    }

    private static Message message(String topic, int i, int j) {
        StringBuilder body = new StringBuilder();
        int pieces = i % 97 == 0 ? 1000 : i % 40;
        for (int piece = 0; piece < pieces; piece++) {
            body.append("piece ").append(i).append(' ').append(j).append(';');
        }
        Message message = new Message(topic, i % 3 == 0 ? "red" : "", "", body.append('.').toString().getBytes());
        message.setKeys("order" + i + "-" + j + (i % 2 == 0 ? " even" + i : ""));
        MessageClientIDSetter.setUniqID(message);
        return message;
    }

    private static void report(BufferedWriter lines, Message message, MessageQueue queue, long offset)
        throws Exception {
        lines.write(String.join("\t", message.getTopic(), "" + queue.getQueueId(), "" + offset,
            message.getKeys(), message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
            "" + message.getTags()));
        lines.newLine();
    }
}
