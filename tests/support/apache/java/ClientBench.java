import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The stock client at the works of bench/bench_client.py: nameserver, seconds per round, messages to consume, rounds.
 * One line per round of a work: name, messages, wall seconds, CPU seconds of this process; of sends that wait for each
 * other also the median and the 99th percentile of their latency in microseconds.
 */
public class ClientBench {
    interface Work {
        long run(long untilNanos) throws Exception;
    }

    static final String TOPIC = "BenchClient";
    static final List<Long> LATENCIES = new ArrayList<>();
    static int rounds = 1;
    static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        double seconds = Double.parseDouble(arguments[1]);
        int consumed = Integer.parseInt(arguments[2]);
        rounds = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("bench_java");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        producer.send(new Message(TOPIC, "warm".getBytes()));
        measure("loop", seconds, until -> inLoop(producer, until));
        measure("in flight", seconds, until -> inFlight(producer, until));
        measure("send_many", seconds, until -> batches(producer, until, 1024));
        measure("send_many, 100 B", seconds, until -> batches(producer, until, 100));
        producer.shutdown();
        for (int round = 0; round < rounds; round++) {
            consume(namesrv, consumed, "consume, batches", 32);
            consume(namesrv, consumed, "consume, single", 1);
            poll(namesrv, consumed);
        }
        System.exit(0);
    }

    static void measure(String name, double seconds, Work work) throws Exception {
        // Once to warm the compiler, with a third of the time.
        work.run(System.nanoTime() + (long) (seconds / 3 * 1e9));
        for (int round = 0; round < rounds; round++) {
            LATENCIES.clear();
            long cpu = SYSTEM.getProcessCpuTime();
            long began = System.nanoTime();
            long count = work.run(began + (long) (seconds * 1e9));
            tell(name, count, System.nanoTime() - began, SYSTEM.getProcessCpuTime() - cpu);
        }
    }

    static void tell(String name, long count, long wallNanos, long cpuNanos) {
        System.out.printf("%s\t%d\t%.6f\t%.6f", name, count, wallNanos / 1e9, cpuNanos / 1e9);
        if (!LATENCIES.isEmpty()) {
            Collections.sort(LATENCIES);
            int size = LATENCIES.size();
            System.out.printf("\t%.1f\t%.1f", LATENCIES.get(size / 2) / 1e3, LATENCIES.get(size * 99 / 100) / 1e3);
            LATENCIES.clear();
        }
        System.out.println();
    }

    static long inLoop(DefaultMQProducer producer, long until) throws Exception {
        long count = 0;
        long began = System.nanoTime();
        while (began < until) {
            producer.send(new Message(TOPIC, new byte[1024]));
            long ended = System.nanoTime();
            LATENCIES.add(ended - began);
            began = ended;
            count++;
        }
        return count;
    }

    static long inFlight(DefaultMQProducer producer, long until) throws Exception {
        Semaphore room = new Semaphore(512);
        AtomicLong failures = new AtomicLong();
        long count = 0;
        while (System.nanoTime() < until) {
            room.acquire();
            producer.send(new Message(TOPIC, new byte[1024]), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failures.incrementAndGet();
                    room.release();
                }
            });
            count++;
        }
        room.acquire(512);
        return count - failures.get();
    }

    /** Four at a time, as the other side does it. */
    static long batches(DefaultMQProducer producer, long until, int size) throws Exception {
        AtomicLong total = new AtomicLong();
        List<Thread> senders = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Thread sender = new Thread(() -> {
                try {
                    total.addAndGet(sendBatches(producer, until, size));
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            sender.start();
            senders.add(sender);
        }
        for (Thread sender : senders) {
            sender.join();
        }
        return total.get();
    }

    static long sendBatches(DefaultMQProducer producer, long until, int size) throws Exception {
        long count = 0;
        while (System.nanoTime() < until) {
            List<Message> batch = new ArrayList<>();
            for (int number = 0; number < 100; number++) {
                batch.add(new Message(TOPIC, new byte[size]));
            }
            producer.send(batch);
            count += batch.size();
        }
        return count;
    }

    static void consume(String namesrv, int wanted, String name, int batchSize) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_java_" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batchSize);
        consumer.setPullBatchSize(32);
        consumer.subscribe("BenchConsume", "*");
        AtomicInteger left = new AtomicInteger(wanted);
        AtomicLong began = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (began.compareAndSet(0, System.nanoTime())) {
                cpu.set(SYSTEM.getProcessCpuTime());
            }
            if (left.addAndGet(-messages.size()) <= 0) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        tell(name, wanted, System.nanoTime() - began.get(), SYSTEM.getProcessCpuTime() - cpu.get());
        consumer.shutdown();
    }

    static void poll(String namesrv, int wanted) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench_java_" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.subscribe("BenchConsume", "*");
        consumer.start();
        long began = 0;
        long cpu = 0;
        int left = wanted;
        while (left > 0) {
            int count = consumer.poll().size();
            if (count > 0 && began == 0) {
                began = System.nanoTime();
                cpu = SYSTEM.getProcessCpuTime();
            }
            left -= count;
        }
        tell("consume, lite pull", wanted, System.nanoTime() - began, SYSTEM.getProcessCpuTime() - cpu);
        consumer.shutdown();
    }
}
