// A client over TLS with RabbitMQ's Java client: by password and by certificate, and those that must be turned away.
// Usage: java -cp 'lib/*' Tls.java PORT DIR, where DIR holds ca.pem, other.pem, client.pem and client.key. The last
// line is `N passed, N failed`.

import com.rabbitmq.client.*;
import java.io.ByteArrayInputStream;
import java.nio.file.*;
import java.security.*;
import java.security.cert.*;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.*;
import javax.net.ssl.*;

public class Tls {
    static int port;
    static Path dir;

    interface Test { void run() throws Exception; }

    static java.security.cert.Certificate certificate(String file) throws Exception {
        byte[] pem = Files.readAllBytes(dir.resolve(file));
        return CertificateFactory.getInstance("X.509").generateCertificate(new ByteArrayInputStream(pem));
    }

    static PrivateKey key(String file) throws Exception {
        String text = Files.readString(dir.resolve(file)).replaceAll("-----[A-Z ]+-----", "").replaceAll("\\s", "");
        return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(text)));
    }

    static SSLContext context(String version, String authority, boolean withCertificate) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        trusted.setCertificateEntry("authority", certificate(authority));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyManager[] own = null;
        if (withCertificate) {
            KeyStore keys = KeyStore.getInstance(KeyStore.getDefaultType());
            keys.load(null, null);
            var chain = new java.security.cert.Certificate[] {certificate("client.pem")};
            keys.setKeyEntry("client", key("client.key"), new char[0], chain);
            KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            factory.init(keys, new char[0]);
            own = factory.getKeyManagers();
        }
        SSLContext made = SSLContext.getInstance(version);
        made.init(own, trust.getTrustManagers(), null);
        return made;
    }

    static ConnectionFactory factory(SSLContext context) {
        ConnectionFactory made = new ConnectionFactory();
        made.setHost("localhost");
        made.setPort(port);
        made.useSslProtocol(context);
        made.enableHostnameVerification();
        made.setAutomaticRecoveryEnabled(false);
        return made;
    }

    /** Sends messages of several sizes to a queue and takes them back. */
    static void exchange(ConnectionFactory factory) throws Exception {
        try (Connection c = factory.newConnection(); Channel ch = c.createChannel()) {
            String queue = ch.queueDeclare().getQueue();
            for (int size : new int[] {0, 1, 16384, 1 << 20}) {
                ch.basicPublish("", queue, null, new byte[size]);
                GetResponse got = null;
                for (long end = System.nanoTime() + 10_000_000_000L; got == null && System.nanoTime() < end; ) {
                    got = ch.basicGet(queue, true);
                }
                if (got == null || got.getBody().length != size) throw new AssertionError("size " + size);
            }
        }
    }

    static void refused(Class<? extends Exception> how, Test test) throws Exception {
        try {
            test.run();
        } catch (Exception e) {
            if (how.isInstance(e)) return;
            throw e;
        }
        throw new AssertionError("was let in");
    }

    static ConnectionFactory external(ConnectionFactory factory) {
        factory.setSaslConfig(DefaultSaslConfig.EXTERNAL);
        return factory;
    }

    public static void main(String[] args) throws Exception {
        port = Integer.parseInt(args[0]);
        dir = Path.of(args[1]);
        Map<String, Test> tests = new LinkedHashMap<>();
        for (String version : List.of("TLSv1.2", "TLSv1.3")) {
            tests.put("by password, " + version, () -> exchange(factory(context(version, "ca.pem", false))));
            tests.put("by certificate, " + version,
                () -> exchange(external(factory(context(version, "ca.pem", true)))));
        }
        tests.put("external without a certificate", () -> refused(AuthenticationFailureException.class,
            () -> external(factory(context("TLSv1.3", "ca.pem", false))).newConnection().close()));
        tests.put("another authority", () -> refused(SSLHandshakeException.class,
            () -> factory(context("TLSv1.3", "other.pem", false)).newConnection().close()));
        int failed = 0;
        for (var test : tests.entrySet()) {
            try {
                test.getValue().run();
            } catch (Throwable e) {
                failed++;
                e.printStackTrace(System.out);
                System.out.println("FAILED " + test.getKey());
            }
        }
        System.out.println((tests.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }
}
