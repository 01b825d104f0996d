import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Time;

/**
 * A broker of Kafka for tests, and one who writes to it. It does what it is told, a command in each line, answers each
 * with a line, and ends with its input. Its argument is a folder with `certificate.pem` and `key.pem`, where its own
 * files go too, and which it removes in the end.
 */
public class Broker {
  private final Properties settings = new Properties();
  private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
  private final String address;
  private final String ready;
  private KafkaRaftServer server;

  public static void main(String[] arguments) throws Exception {
    PrintStream out = System.out;
    // The broker is talkative; only our answers are for the tests.
    System.setOut(new PrintStream(OutputStream.nullOutputStream()));
    Path folder = Path.of(arguments[0]);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> remove(folder)));
    Broker broker = new Broker(folder);
    out.println(broker.start());
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      try {
        out.println(broker.obey(line.split(" ", 6)));
      } catch (Exception error) {
        out.println("failed: " + error);
      }
    }
    remove(folder);
    Runtime.getRuntime().halt(0);
  }

  private Broker(Path folder) throws Exception {
    String certificate = Files.readString(folder.resolve("certificate.pem"));
    int[] ports = new int[5];
    for (int at = 0; at < ports.length; at++) {
      try (ServerSocket socket = new ServerSocket(0)) {
        ports[at] = socket.getLocalPort();
      }
    }
    address = "127.0.0.1:" + ports[0];
    String listeners = "PLAINTEXT://" + address + ",SSL://127.0.0.1:" + ports[1] + ",SASL_PLAINTEXT://127.0.0.1:" + ports[2]
        + ",SASL_SSL://127.0.0.1:" + ports[3];
    set("process.roles", "broker,controller");
    set("node.id", "1");
    set("controller.quorum.voters", "1@127.0.0.1:" + ports[4]);
    set("controller.listener.names", "CONTROLLER");
    set("listeners", listeners + ",CONTROLLER://127.0.0.1:" + ports[4]);
    set("advertised.listeners", listeners);
    set("listener.security.protocol.map",
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL");
    set("inter.broker.listener.name", "PLAINTEXT");
    set("log.dirs", folder.resolve("logs").toString());
    set("auto.create.topics.enable", "false");
    set("group.initial.rebalance.delay.ms", "0");
    for (String topic : List.of("offsets.topic", "transaction.state.log")) {
      set(topic + ".replication.factor", "1");
      set(topic + ".num.partitions", "1");
    }
    set("transaction.state.log.min.isr", "1");
    set("ssl.keystore.type", "PEM");
    set("ssl.keystore.certificate.chain", certificate);
    set("ssl.keystore.key", Files.readString(folder.resolve("key.pem")));
    set("ssl.truststore.type", "PEM");
    set("ssl.truststore.certificates", certificate);
    set("listener.name.ssl.ssl.client.auth", "required");
    set("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512");
    for (String listener : List.of("sasl_plaintext", "sasl_ssl")) {
      String before = "listener.name." + listener + ".";
      set(before + "plain.sasl.jaas.config",
          "org.apache.kafka.common.security.plain.PlainLoginModule required user_ada=\"right\";");
      for (String hash : List.of("scram-sha-256", "scram-sha-512")) {
        set(before + hash + ".sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required;");
      }
    }
    Path file = folder.resolve("server.properties");
    try (OutputStream out = Files.newOutputStream(file)) {
      settings.store(out, null);
    }
    String[] format = {"format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", file.toString(),
        "-S", "SCRAM-SHA-256=[name=ada,password=right]", "-S", "SCRAM-SHA-512=[name=ada,password=right]"};
    if (StorageTool.execute(format, System.out) != 0) {
      throw new IllegalStateException("the folder cannot be formatted");
    }
    ready = ports[0] + " " + ports[1] + " " + ports[2] + " " + ports[3];
  }

  private void set(String name, String value) {
    settings.setProperty(name, value);
  }

  /** Starts, and says the ports: bare, encrypted, with a login, with both. */
  private String start() {
    server = new KafkaRaftServer(KafkaConfig.fromProps(settings, false), Time.SYSTEM);
    server.startup();
    return ready;
  }

  private String obey(String[] words) throws Exception {
    switch (words[0]) {
      case "stop":
        server.shutdown();
        server.awaitShutdown();
        return "ok";
      case "start":
        return start();
      case "send": // TOPIC PARTITION PACKING FROM TO
        return send(words[1], Integer.parseInt(words[2]), words[3], words[4], words[5]);
      case "raw": // TOPIC TEXT
        String text = String.join(" ", List.of(words).subList(2, words.length));
        producer("none", null).send(new ProducerRecord<>(words[1], 0, "key", text.equals("null") ? null : text)).get();
        return "ok";
      default:
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
          return administer(admin, words);
        }
    }
  }

  private String administer(Admin admin, String[] words) throws Exception {
    switch (words[0]) {
      case "create": // TOPIC PARTITIONS
        admin.createTopics(List.of(new NewTopic(words[1], Integer.parseInt(words[2]), (short) 1))).all().get();
        // A broker hears of it a little later.
        while (!admin.listTopics().names().get().contains(words[1])) {
          Thread.onSpinWait();
        }
        return "ok";
      case "grow": // TOPIC PARTITIONS
        admin.createPartitions(Map.of(words[1], NewPartitions.increaseTo(Integer.parseInt(words[2])))).all().get();
        return "ok";
      case "delete": // TOPIC
        admin.deleteTopics(List.of(words[1])).all().get();
        return "ok";
      case "cut": // TOPIC PARTITION OFFSET
        TopicPartition part = new TopicPartition(words[1], Integer.parseInt(words[2]));
        admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(Long.parseLong(words[3])))).all().get();
        return "ok";
      case "offsets": // GROUP TOPIC
        Map<Integer, Long> offsets = new TreeMap<>();
        admin.listConsumerGroupOffsets(words[1]).partitionsToOffsetAndMetadata().get()
            .forEach((of, offset) -> {
              if (of.topic().equals(words[2])) {
                offsets.put(of.partition(), offset.offset());
              }
            });
        return offsets.toString();
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  /** Sends quakes of these numbers; PACKING may be followed by `+commit` or `+abort`. */
  private String send(String topic, int partition, String packing, String from, String to) throws Exception {
    int plus = packing.indexOf('+');
    String end = plus < 0 ? null : packing.substring(plus + 1);
    KafkaProducer<String, String> producer = producer(plus < 0 ? packing : packing.substring(0, plus), end);
    if (end != null) {
      producer.beginTransaction();
    }
    for (int number = Integer.parseInt(from); number < Integer.parseInt(to); number++) {
      ProducerRecord<String, String> record = new ProducerRecord<>(topic, partition, null, "{\"id\": \"q" + number + "\"}");
      String parent = String.format("00-%032x-00f067aa0ba902b7-01", number + 1);
      record.headers().add("traceparent", parent.getBytes(StandardCharsets.UTF_8));
      producer.send(record);
    }
    producer.flush();
    if (end != null) {
      if (end.equals("abort")) {
        producer.abortTransaction();
      } else {
        producer.commitTransaction();
      }
    }
    return "ok";
  }

  private KafkaProducer<String, String> producer(String packing, String end) {
    return producers.computeIfAbsent(packing + (end == null ? "" : "+"), name -> {
      Map<String, Object> settings = new HashMap<>();
      settings.put("bootstrap.servers", address);
      settings.put("compression.type", packing);
      settings.put("linger.ms", "5");
      if (end != null) {
        settings.put("transactional.id", name);
      }
      KafkaProducer<String, String> made = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
      if (end != null) {
        made.initTransactions();
      }
      return made;
    });
  }

  private static void remove(Path folder) {
    try (var files = Files.walk(folder)) {
      files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
    } catch (Exception gone) {
      // Another thread was first.
    }
  }
}
