import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Threads that send numbered messages with a stock producer until they are stopped, and what was
 * acknowledged with SEND_OK: bodies with queue and queue offset. A body is "THREAD NUMBER"; a message
 * that fails is sent again with the same body.
 */
final class SendLoad {
    private static final int SENT_MAX = 200_000;
    private static final long PAUSE_MS = 10;

    private final DefaultMQProducer producer;
    private final String topic;
    private final List<Thread> threads = new ArrayList<>();
    private final JSONArray acknowledged = new JSONArray();
    private volatile boolean isOver;
    private long lastMs = System.nanoTime() / 1_000_000;
    private long longestMs;
    private int failedCount;

    SendLoad(DefaultMQProducer producer, String topic, int threadCount) {
        this.producer = producer;
        this.topic = topic;
        for (int number = 0; number < threadCount; number++) {
            int own = number;
            Thread thread = new Thread(() -> run(own));
            threads.add(thread);
            thread.start();
        }
    }

    private void run(int thread) {
        int number = 0;
        for (int tries = 0; tries < SENT_MAX && !isOver; tries++) {
            String body = thread + " " + number;
            try {
                SendResult sent = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                if (sent.getSendStatus() == SendStatus.SEND_OK) {
                    note(body, sent);
                    number++;
                }
            } catch (Exception error) {
                failed();
            }
        }
    }

    private synchronized void note(String body, SendResult sent) {
        long nowMs = System.nanoTime() / 1_000_000;
        longestMs = Math.max(longestMs, nowMs - lastMs);
        lastMs = nowMs;
        JSONArray each = new JSONArray();
        each.add(body);
        each.add(sent.getMessageQueue().getQueueId());
        each.add(sent.getQueueOffset());
        acknowledged.add(each);
    }

    private void failed() {
        synchronized (this) {
            failedCount++;
        }
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) {
            isOver = true;
        }
    }

    synchronized int count() {
        return acknowledged.size();
    }

    /** The longest time between two acknowledgements since the last call. */
    synchronized long longestMs() {
        long result = Math.max(longestMs, System.nanoTime() / 1_000_000 - lastMs);
        longestMs = 0;
        return result;
    }

    Object stop() throws InterruptedException {
        isOver = true;
        for (Thread thread : threads) {
            thread.join();
        }
        JSONObject result = new JSONObject();
        result.put("acknowledged", acknowledged);
        result.put("failed", failedCount);
        return result;
    }
}
