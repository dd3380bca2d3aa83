import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/**
 * A program that is driven by lines of JSON; tests/apache/shell.py is its other half.
 *
 * <p>A request is {"id": N, "verb": V, ...} on standard input; its answer {"id": N, "result": R} or
 * {"id": N, "error": TEXT} comes on standard output, where events {"event": E, ...} appear at any time.
 * What the stock classes print goes to standard error. The program ends with its input.
 */
abstract class JsonProgram {
    /** A server that got no processor for seconds is not a dead one. */
    private static final int PATIENCE_MS = 30_000;

    private final PrintStream answers = System.out;

    /** The result of a request; whatever it throws is told to the one who asked. */
    abstract Object handle(JSONObject request) throws Exception;

    final void serve() throws Exception {
        System.setOut(System.err);
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            answer.put("id", request.getIntValue("id"));
            try {
                answer.put("result", request.getString("verb").equals("ping") ? "pong" : handle(request));
            } catch (Throwable problem) {
                StringWriter text = new StringWriter();
                problem.printStackTrace(new PrintWriter(text));
                answer.put("error", text.toString());
            }
            emit(answer);
        }
        // Clients leave threads behind that would keep the JVM alive.
        Runtime.getRuntime().halt(0);
    }

    /** Any thread may write a line. */
    final void emit(JSONObject line) {
        byte[] bytes = (line.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (answers) {
            answers.write(bytes, 0, bytes.length);
            answers.flush();
        }
    }

    /** Let a client find its cluster. */
    static void reach(ClientConfig client, JSONObject request) {
        client.setNamesrvAddr(request.getString("namesrv"));
        client.setMqClientApiTimeout(PATIENCE_MS);
    }

    /** The ids of the queues of a topic that a consumer has now; where it begins in them is then settled. */
    static List<Integer> queuesOf(DefaultMQPushConsumer consumer, String topic) {
        List<Integer> ids = new ArrayList<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, process) -> {
            if (queue.getTopic().equals(topic) && !process.isDropped()) {
                ids.add(queue.getQueueId());
            }
        });
        Collections.sort(ids);
        return ids;
    }
}
