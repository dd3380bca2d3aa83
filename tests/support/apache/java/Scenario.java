import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * What an application does with the stock clients, one step at a time.
 *
 * <p>Each public method without arguments is a step; it returns when its effect can be seen, so that whoever
 * listens on the wire knows which frames belong to it.
 */
public final class Scenario {
    static final String TOPIC = "GoldenTopic";
    static final String ORDERED_TOPIC = "GoldenOrdered";
    static final String SHELVED_TOPIC = "GoldenRetried";
    static final String REQUEST_TOPIC = "GoldenRequest";
    static final String POP_TOPIC = "GoldenPop";
    static final String LONG_TOPIC = "GoldenPopAgain_" + digits(60);
    static final String LONG_GROUP = "golden_pop_again_" + digits(90);
    private static final long PATIENCE_S = 40;

    private final String namesrv;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final List<DefaultMQProducer> repliers = new ArrayList<>();
    private final AtomicInteger instances = new AtomicInteger();
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;
    private SendResult lastSent;
    private volatile CountDownLatch checked = new CountDownLatch(1);

    public Scenario(String namesrv) {
        this.namesrv = namesrv;
    }

    /** Run the step of this name. */
    public String run(String step) throws Exception {
        try {
            Object result = Scenario.class.getMethod(step).invoke(this);
            return result == null ? "done" : result.toString();
        } catch (InvocationTargetException problem) {
            throw new IllegalStateException("step " + step + " failed", problem.getCause());
        }
    }

    private String instance() {
        return "golden" + instances.incrementAndGet();
    }

    private static String digits(int count) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < count; i++) {
            text.append(i % 10);
        }
        return text.toString();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void await(CountDownLatch latch, String what) throws InterruptedException {
        if (!latch.await(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(what + ": not within " + PATIENCE_S + " s");
        }
    }

    // -- sending -----------------------------------------------------------------------------------

    public void startProducer() throws Exception {
        producer = new DefaultMQProducer("golden_producers");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(instance());
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    public void sendPlain() throws Exception {
        lastSent = producer.send(new Message(TOPIC, bytes("plain")));
    }

    public void sendTagsAndKeys() throws Exception {
        Message message = new Message(TOPIC, "TagA", "order-1 order-2", bytes("tags and keys"));
        message.setFlag(7);
        message.putUserProperty("region", "north");
        lastSent = producer.send(message);
    }

    public void sendUnicode() throws Exception {
        Message message = new Message(TOPIC, "标签", "键一 键二", bytes("天舟 \uD83D\uDE80 ünïcödé"));
        message.putUserProperty("城市", "北京");
        message.putUserProperty("rocket", "\uD83D\uDE80");
        message.putUserProperty("quoted", "a\"b\\c/d\te");
        lastSent = producer.send(message);
    }

    public void sendNoWait() throws Exception {
        Message message = new Message(TOPIC, "TagB", bytes("no wait"));
        message.setWaitStoreMsgOK(false);
        message.setBuyerId("buyer-9");
        lastSent = producer.send(message);
    }

    public void sendDelayed() throws Exception {
        Message message = new Message(TOPIC, "TagA", "delayed-1", bytes("delayed"));
        message.setDelayTimeLevel(1);
        producer.send(message);
    }

    public void sendOneway() throws Exception {
        producer.sendOneway(new Message(TOPIC, "TagA", bytes("oneway")));
        // Nothing answers a oneway request; the next answered one tells that it went out before.
        producer.send(new Message(TOPIC, "TagA", bytes("after oneway")));
    }

    public void sendAsync() throws Exception {
        CountDownLatch answered = new CountDownLatch(1);
        producer.send(new Message(TOPIC, "TagA", bytes("async")), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answered.countDown();
            }

            @Override
            public void onException(Throwable problem) {
                problem.printStackTrace();
            }
        });
        await(answered, "answer to an async send");
    }

    public void sendBatch() throws Exception {
        Message first = new Message(TOPIC, "TagA", "batch-1", bytes("first of three"));
        Message second = new Message(TOPIC, "TagB", "batch-2", bytes("第二"));
        second.putUserProperty("n", "2");
        second.setFlag(3);
        Message third = new Message(TOPIC, bytes(""));
        third.setBody(new byte[] {0, 1, 2, -1});
        producer.send(Arrays.asList(first, second, third));
    }

    public void sendCompressed() throws Exception {
        producer.send(new Message(TOPIC, "TagA", "compressed", compressible()));
    }

    /** 5.x only: the client can be told which algorithm to use. */
    public String sendCompressedLz4() throws Exception {
        return sendCompressedAs("LZ4");
    }

    public String sendCompressedZstd() throws Exception {
        return sendCompressedAs("ZSTD");
    }

    private String sendCompressedAs(String name) throws Exception {
        for (Method method : DefaultMQProducer.class.getMethods()) {
            if (method.getName().equals("setCompressType")) {
                Class<?> type = method.getParameterTypes()[0];
                Method valueOf = type.getMethod("valueOf", String.class);
                method.invoke(producer, valueOf.invoke(null, name));
                producer.send(new Message(TOPIC, "TagA", name, compressible()));
                method.invoke(producer, valueOf.invoke(null, "ZLIB"));
                return "done";
            }
        }
        return "skipped";
    }

    private static byte[] compressible() {
        StringBuilder text = new StringBuilder();
        while (text.length() < 5000) {
            text.append("line ").append(text.length() / 100).append(" of a body that shrinks well\n");
        }
        return bytes(text.toString());
    }

    /** More than a small log file holds, so that the first one is filled up to its end. */
    public void sendBig() throws Exception {
        producer.setCompressMsgBodyOverHowmuch(1 << 20);
        for (int i = 0; i < 3; i++) {
            producer.send(new Message("GoldenBig", new byte[60_000]));
        }
        producer.setCompressMsgBodyOverHowmuch(4096);
    }

    public void sendSigned() throws Exception {
        RPCHook credentials =
            new AclClientRPCHook(new SessionCredentials("golden-access", "golden-secret", "golden-token"));
        DefaultMQProducer signing = new DefaultMQProducer("golden_signers", credentials);
        signing.setNamesrvAddr(namesrv);
        signing.setInstanceName(instance());
        signing.setSendMsgTimeout(10_000);
        signing.start();
        signing.send(new Message(TOPIC, "TagS", "signed-1", bytes("signed 签名")));
        signing.shutdown();
    }

    public void sendOrdered() throws Exception {
        for (int i = 0; i < 4; i++) {
            producer.send(new Message(ORDERED_TOPIC, "TagA", bytes("ordered " + i)),
                (queues, message, key) -> queues.get((Integer) key % queues.size()), 1);
        }
    }

    // -- transactions ------------------------------------------------------------------------------

    public void startTransactionProducer() throws Exception {
        transactions = new TransactionMQProducer("golden_transactions");
        transactions.setNamesrvAddr(namesrv);
        transactions.setInstanceName(instance());
        transactions.setSendMsgTimeout(10_000);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
    }

    public void transactionCommit() throws Exception {
        transact("commit", LocalTransactionState.COMMIT_MESSAGE);
    }

    public void transactionRollback() throws Exception {
        transact("rollback", LocalTransactionState.ROLLBACK_MESSAGE);
    }

    public void transactionChecked() throws Exception {
        checked = new CountDownLatch(1);
        transact("unknown", LocalTransactionState.UNKNOW);
        await(checked, "check of a transaction");
    }

    private void transact(String key, LocalTransactionState state) throws Exception {
        Message message = new Message(TOPIC, "TagTx", key, bytes("transaction " + key));
        transactions.sendMessageInTransaction(message, state);
        // The end of a transaction is sent oneway; an answered request on the same connection follows it.
        transactions.fetchPublishMessageQueues(TOPIC);
        transactions.maxOffset(new MessageQueue(TOPIC, "broker-a", 0));
    }

    // -- consuming ---------------------------------------------------------------------------------

    private DefaultMQPushConsumer consumer(String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPollNameServerInterval(1000);
        consumers.add(consumer);
        return consumer;
    }

    public void consume() throws Exception {
        CountDownLatch arrived = new CountDownLatch(4);
        DefaultMQPushConsumer consumer = consumer("golden_consumers");
        consumer.subscribe(TOPIC, "TagA || TagB");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(arrived, "messages");
        persistOffsets(consumer);
    }

    /** Offsets are otherwise written every five seconds, on a timer of their own. */
    private static void persistOffsets(DefaultMQPushConsumer consumer) {
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
    }

    public void joinGroup() throws Exception {
        DefaultMQPushConsumer consumer = consumer("golden_consumers");
        consumer.subscribe(TOPIC, "TagA || TagB");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
    }

    public void consumeOrderly() throws Exception {
        CountDownLatch arrived = new CountDownLatch(4);
        DefaultMQPushConsumer consumer = consumer("golden_orderly");
        consumer.subscribe(ORDERED_TOPIC, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> arrived.countDown());
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(arrived, "ordered messages");
        persistOffsets(consumer);
    }

    public void consumeSql() throws Exception {
        CountDownLatch arrived = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer("golden_sql");
        consumer.subscribe(TOPIC, MessageSelector.bySql("region = 'north' AND TAGS IS NOT NULL"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            arrived.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(arrived, "a message that the SQL filter lets pass");
    }

    public void consumeLater() throws Exception {
        CountDownLatch again = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer("golden_retried");
        consumer.subscribe(SHELVED_TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (messages.get(0).getReconsumeTimes() > 0) {
                again.countDown();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        Message message = new Message(SHELVED_TOPIC, "TagA", "retried", bytes("retried"));
        producer.send(message);
        await(again, "the second delivery");
    }

    public void requestReply() throws Exception {
        DefaultMQPushConsumer consumer = consumer("golden_repliers");
        DefaultMQProducer replier = new DefaultMQProducer("golden_reply_producers");
        replier.setNamesrvAddr(namesrv);
        replier.setInstanceName(instance());
        replier.start();
        repliers.add(replier);
        consumer.subscribe(REQUEST_TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    replier.send(MessageUtil.createReplyMessage(message, bytes("an answer")));
                } catch (Exception problem) {
                    problem.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.request(new Message(REQUEST_TOPIC, bytes("a question")), 20_000);
    }

    /** 5.x only: a group that the administrator has switched to pop. */
    public void consumePop() throws Exception {
        CountDownLatch both = new CountDownLatch(2);
        pop(POP_TOPIC, "golden_pop", (messages, context) -> {
            messages.forEach(message -> both.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await(both, "popped messages");
    }

    /** The retry topic of this group is longer than a byte can count, so the broker writes v2 records. */
    public void consumePopAgain() throws Exception {
        CountDownLatch again = new CountDownLatch(1);
        pop(LONG_TOPIC, LONG_GROUP, (messages, context) -> {
            if (messages.get(0).getReconsumeTimes() > 0) {
                again.countDown();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        await(again, "the second delivery of a popped message");
    }

    private void pop(String topic, String group, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        producer.send(new Message(topic, "TagA", "popped", bytes("popped")));
        producer.send(new Message(topic, "TagA", "popped", bytes("popped too")));
    }

    @SuppressWarnings("deprecation")
    public void pull() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("golden_pullers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance());
        consumer.start();
        consumer.fetchSubscribeMessageQueues(TOPIC);
        MessageQueue queue = lastSent.getMessageQueue();
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        consumer.searchOffset(queue, System.currentTimeMillis() - 3_600_000);
        consumer.earliestMsgStoreTime(queue);
        PullResult found = consumer.pull(queue, "*", min, 32);
        consumer.pull(queue, "TagNone", min, 32);
        consumer.pull(queue, "*", max, 32);
        consumer.pull(queue, "*", max + 1000, 32);
        consumer.updateConsumeOffset(queue, found.getNextBeginOffset());
        consumer.fetchConsumeOffset(queue, true);
        consumer.viewMessage(TOPIC, reachableId());
        consumer.queryMessage(TOPIC, "order-1", 32, 0, System.currentTimeMillis() + 1000);
        consumer.shutdown();
    }

    /** The id of the last message names the broker's own address; the one we know it by may be another. */
    private String reachableId() throws Exception {
        String address = producer.getDefaultMQProducerImpl().getmQClientFactory()
            .findBrokerAddressInPublish(lastSent.getMessageQueue().getBrokerName());
        int colon = address.lastIndexOf(':');
        InetSocketAddress socket = new InetSocketAddress(
            address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        return MessageDecoder.createMessageId(
            socket, MessageDecoder.decodeMessageId(lastSent.getOffsetMsgId()).getOffset());
    }

    /** What is asked of the nameserver about a topic that nobody has. */
    public void askForMissing() throws Exception {
        try {
            producer.send(new Message("NoSuchTopic", bytes("nobody")));
        } catch (MQClientException expected) {
            return;
        }
        throw new IllegalStateException("a topic that nobody has took a message");
    }

    public void stop() {
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        consumers.clear();
        repliers.forEach(DefaultMQProducer::shutdown);
        repliers.clear();
        if (transactions != null) {
            transactions.shutdown();
        }
        producer.shutdown();
    }
}
