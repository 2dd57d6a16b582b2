// Exercises a broker with RabbitMQ's Java client. Its own tests are not published as a package.
// Usage: java -cp 'lib/*' Check.java PORT. The last line is `N passed, N failed`.

import com.rabbitmq.client.*;
import com.rabbitmq.client.AMQP.BasicProperties;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Check {
    static int port;
    static final long WAIT = 15;

    interface Test { void run() throws Exception; }

    static ConnectionFactory factory() {
        ConnectionFactory f = new ConnectionFactory();
        f.setHost("127.0.0.1");
        f.setPort(port);
        return f;
    }

    static Connection connect() throws Exception { return factory().newConnection(); }

    static void check(boolean ok, String what) {
        if (!ok) throw new AssertionError(what);
    }

    static byte[] bytes(String s) { return s.getBytes(StandardCharsets.UTF_8); }

    static int closeCode(ShutdownSignalException e) {
        Object reason = e.getReason();
        if (reason instanceof AMQP.Channel.Close) return ((AMQP.Channel.Close) reason).getReplyCode();
        if (reason instanceof AMQP.Connection.Close) return ((AMQP.Connection.Close) reason).getReplyCode();
        return -1;
    }

    static void refused(int code, Test test) throws Exception {
        try {
            test.run();
        } catch (IOException e) {
            check(e.getCause() instanceof ShutdownSignalException, "no shutdown: " + e);
            int got = closeCode((ShutdownSignalException) e.getCause());
            check(got == code, "closed with " + got + " instead of " + code);
            return;
        } catch (ShutdownSignalException e) {
            check(closeCode(e) == code, "closed with " + closeCode(e) + " instead of " + code);
            return;
        }
        throw new AssertionError("nothing was refused");
    }

    public static void main(String[] args) throws Exception {
        port = Integer.parseInt(args[0]);
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("serverProperties", () -> {
            try (Connection c = connect()) {
                Map<String, Object> p = c.getServerProperties();
                check(p.containsKey("product") && p.containsKey("version"), "properties " + p);
                Map<?, ?> caps = (Map<?, ?>) p.get("capabilities");
                check(Boolean.TRUE.equals(caps.get("publisher_confirms")), "capabilities " + caps);
            }
        });
        tests.put("publishGet", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.basicPublish("", q, MessageProperties.PERSISTENT_TEXT_PLAIN, bytes("hello"));
                GetResponse r = null;
                for (int i = 0; i < 500 && r == null; i++) r = ch.basicGet(q, true);
                check(r != null && new String(r.getBody()).equals("hello"), "got " + r);
                check(r.getProps().getDeliveryMode() == 2, "delivery mode");
            }
        });
        tests.put("allPropertiesAndHeaders", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                Map<String, Object> h = new HashMap<>();
                h.put("int", 1); h.put("long", 1L << 40); h.put("bool", true); h.put("string", "s");
                h.put("double", 2.5); h.put("float", 1.5f); h.put("short", (short) 7);
                h.put("byte", (byte) -3); h.put("date", new Date(1700000000000L)); h.put("null", null);
                h.put("list", Arrays.asList(1, "two", 3L)); h.put("table", Map.of("k", "v"));
                h.put("bytes", new byte[] {0, -1}); h.put("decimal", new java.math.BigDecimal("3.14"));
                BasicProperties props = new BasicProperties.Builder().contentType("a/b")
                    .contentEncoding("gzip").headers(h).deliveryMode(1).priority(5).correlationId("c")
                    .replyTo("r").expiration("60000").messageId("m").timestamp(new Date(1700000000000L))
                    .type("t").userId("guest").appId("app").clusterId("cl").build();
                ch.basicPublish("", q, props, bytes("x"));
                GetResponse r = null;
                for (int i = 0; i < 500 && r == null; i++) r = ch.basicGet(q, true);
                BasicProperties p = r.getProps();
                check("a/b".equals(p.getContentType()) && "cl".equals(p.getClusterId()), "props " + p);
                check(p.getTimestamp().equals(new Date(1700000000000L)), "timestamp");
                check(p.getHeaders().keySet().equals(h.keySet()), "headers " + p.getHeaders());
                check(p.getHeaders().get("decimal").equals(h.get("decimal")), "decimal");
                check(p.getHeaders().get("long").equals(1L << 40), "long");
                check(Arrays.equals((byte[]) p.getHeaders().get("bytes"), new byte[] {0, -1}), "bytes");
            }
        });
        tests.put("consumeAck", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.basicQos(10);
                CountDownLatch done = new CountDownLatch(1000);
                List<Integer> seen = Collections.synchronizedList(new ArrayList<>());
                ch.basicConsume(q, false, (tag, d) -> {
                    seen.add(Integer.parseInt(new String(d.getBody())));
                    ch.basicAck(d.getEnvelope().getDeliveryTag(), false);
                    done.countDown();
                }, tag -> { });
                try (Channel pub = c.createChannel()) {
                    for (int i = 0; i < 1000; i++) pub.basicPublish("", q, null, bytes("" + i));
                }
                check(done.await(WAIT, TimeUnit.SECONDS), seen.size() + " of 1000 came");
                for (int i = 0; i < 1000; i++) check(seen.get(i) == i, "order at " + i);
            }
        });
        tests.put("confirms", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.confirmSelect();
                for (int i = 0; i < 5000; i++) ch.basicPublish("", q, null, bytes("" + i));
                check(ch.waitForConfirms(WAIT * 1000), "nacked");
                check(ch.queueDeclarePassive(q).getMessageCount() == 5000, "count");
                check(ch.queuePurge(q).getMessageCount() == 5000, "purged");
            }
        });
        tests.put("mandatoryReturn", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                BlockingQueue<Return> returns = new LinkedBlockingQueue<>();
                ch.addReturnListener(returns::add);
                ch.basicPublish("", "java.nowhere", true, null, bytes("lost"));
                Return r = returns.poll(WAIT, TimeUnit.SECONDS);
                check(r != null && r.getReplyCode() == 312 && r.getReplyText().equals("NO_ROUTE"), "return");
            }
        });
        tests.put("transactions", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.txSelect();
                ch.basicPublish("", q, null, bytes("1"));
                ch.txRollback();
                ch.basicPublish("", q, null, bytes("2"));
                ch.txCommit();
                GetResponse r = ch.basicGet(q, false);
                check(new String(r.getBody()).equals("2"), "rolled back message came");
                ch.basicAck(r.getEnvelope().getDeliveryTag(), false);
                ch.txRollback();
                ch.basicRecover(true);
                check(ch.basicGet(q, false).getEnvelope().isRedeliver(), "redelivered");
            }
        });
        tests.put("closeCodes", () -> {
            try (Connection c = connect()) {
                refused(404, () -> c.createChannel().queueDeclarePassive("java.nowhere"));
                refused(404, () -> c.createChannel().exchangeDeclarePassive("java.nowhere"));
                refused(403, () -> c.createChannel().queueDeclare("amq.mine", false, false, false, null));
                refused(406, () -> {
                    Channel ch = c.createChannel();
                    ch.queueDeclare("java.inequivalent", false, true, true, null);
                    ch.queueDeclare("java.inequivalent", false, true, false, null);
                });
                refused(405, () -> {
                    try (Connection other = connect()) {
                        String q = other.createChannel().queueDeclare().getQueue();
                        c.createChannel().queueDeclarePassive(q);
                    }
                });
            }
        });
        tests.put("exchangeToExchange", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                ch.exchangeDeclare("java.src", "topic", false, true, null);
                ch.exchangeDeclare("java.dst", "fanout", false, true, null);
                String q = ch.queueDeclare().getQueue();
                ch.queueBind(q, "java.dst", "");
                ch.exchangeBind("java.dst", "java.src", "a.*");
                ch.confirmSelect();
                ch.basicPublish("java.src", "a.b", null, bytes("x"));
                ch.basicPublish("java.src", "b.b", null, bytes("y"));
                ch.waitForConfirms(WAIT * 1000);
                check(ch.messageCount(q) == 1, "count");
                ch.exchangeUnbind("java.dst", "java.src", "a.*");
            }
        });
        tests.put("headersExchange", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.queueBind(q, "amq.headers", "", Map.of("x-match", "any", "k", "v", "n", 1));
                ch.confirmSelect();
                for (Object v : new Object[] {"v", "w"}) {
                    ch.basicPublish("amq.headers", "", new BasicProperties.Builder().headers(Map.of("k", v)).build(), bytes("x"));
                }
                ch.waitForConfirms(WAIT * 1000);
                check(ch.messageCount(q) == 1, "count " + ch.messageCount(q));
            }
        });
        tests.put("deadLetters", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String dead = ch.queueDeclare().getQueue();
                String q = ch.queueDeclare("", false, true, true, Map.of(
                    "x-message-ttl", 50, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead)).getQueue();
                BlockingQueue<Delivery> got = new LinkedBlockingQueue<>();
                ch.basicConsume(dead, true, (t, d) -> got.add(d), t -> { });
                ch.basicPublish("", q, null, bytes("x"));
                Delivery d = got.poll(WAIT, TimeUnit.SECONDS);
                check(d != null, "no dead letter");
                Map<?, ?> death = (Map<?, ?>) ((List<?>) d.getProperties().getHeaders().get("x-death")).get(0);
                check("expired".equals(death.get("reason").toString()), "death " + death);
                check(Long.valueOf(1).equals(death.get("count")), "count " + death);
            }
        });
        tests.put("priorities", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare("", false, true, true, Map.of("x-max-priority", 5)).getQueue();
                ch.confirmSelect();
                for (int i = 0; i < 6; i++) {
                    ch.basicPublish("", q, new BasicProperties.Builder().priority(i).build(), bytes("" + i));
                }
                ch.waitForConfirms(WAIT * 1000);
                for (int i = 5; i >= 0; i--) {
                    check(new String(ch.basicGet(q, true).getBody()).equals("" + i), "priority " + i);
                }
            }
        });
        tests.put("directReplyTo", () -> {
            try (Connection c = connect(); Channel server = c.createChannel()) {
                String q = server.queueDeclare().getQueue();
                server.basicConsume(q, true, (t, d) -> server.basicPublish("", d.getProperties().getReplyTo(),
                    null, bytes("re: " + new String(d.getBody()))), t -> { });
                CompletableFuture<String> answer = new CompletableFuture<>();
                try (Channel raw = c.createChannel()) {
                    raw.basicConsume("amq.rabbitmq.reply-to", true, (t, d) -> answer.complete(new String(d.getBody())), t -> { });
                    raw.basicPublish("", q, new BasicProperties.Builder().replyTo("amq.rabbitmq.reply-to").build(), bytes("q"));
                    check(answer.get(WAIT, TimeUnit.SECONDS).equals("re: q"), "answer");
                }
            }
        });
        tests.put("consumerCancelNotify", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                CountDownLatch cancelled = new CountDownLatch(1);
                ch.basicConsume(q, true, (t, d) -> { }, t -> cancelled.countDown());
                try (Channel other = c.createChannel()) { other.queueDelete(q); }
                check(cancelled.await(WAIT, TimeUnit.SECONDS), "not told");
            }
        });
        tests.put("nackRequeueRedelivers", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ch.basicPublish("", q, null, bytes("x"));
                BlockingQueue<Delivery> got = new LinkedBlockingQueue<>();
                ch.basicConsume(q, false, (t, d) -> got.add(d), t -> { });
                Delivery first = got.poll(WAIT, TimeUnit.SECONDS);
                ch.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
                Delivery second = got.poll(WAIT, TimeUnit.SECONDS);
                check(!first.getEnvelope().isRedeliver() && second.getEnvelope().isRedeliver(), "redelivered");
                ch.basicReject(second.getEnvelope().getDeliveryTag(), false);
            }
        });
        tests.put("wrongPassword", () -> {
            ConnectionFactory f = factory();
            f.setPassword("wrong");
            try (Connection c = f.newConnection()) {
                throw new AssertionError("let in");
            } catch (AuthenticationFailureException e) {
                check(e.getMessage().contains("ACCESS_REFUSED"), e.getMessage());
            }
        });
        tests.put("unknownVhost", () -> {
            ConnectionFactory f = factory();
            f.setVirtualHost("no-such");
            refused(530, () -> f.newConnection());
        });
        tests.put("heartbeats", () -> {
            ConnectionFactory f = factory();
            f.setRequestedHeartbeat(1);
            try (Connection c = f.newConnection()) {
                check(c.getHeartbeat() == 1, "heartbeat " + c.getHeartbeat());
                CountDownLatch closed = new CountDownLatch(1);
                c.addShutdownListener(e -> closed.countDown());
                check(!closed.await(4, TimeUnit.SECONDS), "the connection was lost");
            }
        });
        tests.put("smallFrames", () -> {
            ConnectionFactory f = factory();
            f.setRequestedFrameMax(4096);
            try (Connection c = f.newConnection(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                byte[] body = new byte[1_000_000];
                new Random(1).nextBytes(body);
                ch.confirmSelect();
                ch.basicPublish("", q, null, body);
                ch.waitForConfirms(WAIT * 1000);
                check(Arrays.equals(ch.basicGet(q, true).getBody(), body), "body");
            }
        });
        tests.put("manyChannels", () -> {
            try (Connection c = connect()) {
                List<Channel> all = new ArrayList<>();
                for (int i = 0; i < 500; i++) all.add(c.createChannel());
                for (Channel ch : all) ch.queueDeclare();
                for (Channel ch : all) ch.close();
            }
        });
        tests.put("threadsPublish", () -> {
            try (Connection c = connect(); Channel ch = c.createChannel()) {
                String q = ch.queueDeclare().getQueue();
                ExecutorService pool = Executors.newFixedThreadPool(8);
                List<Future<?>> all = new ArrayList<>();
                for (int t = 0; t < 8; t++) {
                    all.add(pool.submit(() -> {
                        Channel own = c.createChannel();
                        own.confirmSelect();
                        for (int i = 0; i < 500; i++) own.basicPublish("", q, null, new byte[100]);
                        own.waitForConfirmsOrDie(WAIT * 1000);
                        own.close();
                        return null;
                    }));
                }
                for (Future<?> f : all) f.get();
                pool.shutdown();
                check(ch.messageCount(q) == 4000, "count " + ch.messageCount(q));
            }
        });
        int failed = 0;
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            try {
                test.getValue().run();
                System.out.println("ok " + test.getKey());
            } catch (Throwable e) {
                failed++;
                System.out.println("FAILED " + test.getKey() + ": " + e);
                e.printStackTrace(System.out);
            }
        }
        System.out.println((tests.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }
}
