// Debezium's embedded engine over a backlog of changes, for debezium_engine.py.
//
// Arguments: the server's connection string, which must name the replica set, and a collection as `database.name`. For
// each line of input, `FORMAT SINCE ROWS`, a new engine reads the collection's changes from that second on, without a
// snapshot, its offsets in memory, until so many rows have come. FORMAT: `connect`, records of Kafka Connect with
// documents as text; `json`, these as JSON. The answer is a line `ROWS BATCHES SECONDS`, written once the engine is
// closed; the seconds are those to the last row. An engine that fails, or takes ten minutes, ends the process with
// status 1.

import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.SerializationFormat;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

class DebeziumBacklog {
    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            var begun = System.nanoTime();
            var words = line.split(" ");
            var settings = settings(arguments, Long.parseLong(words[1]));
            var counted = new Counted(Long.parseLong(words[2]));
            if (words[0].equals("json")) {
                run(Json.class, settings, counted);
            } else {
                run(Connect.class, settings, counted);
            }
            System.out.println(counted.rows + " " + counted.batches + " " + (counted.ended - begun) / 1e9);
        }
        System.exit(0);
    }

    static <T> void run(Class<? extends SerializationFormat<T>> format, Properties settings, Counted counted)
            throws Exception {
        var engine = DebeziumEngine.create(format).using(settings).notifying(counted.<T>consumer()).using(
                (success, message, error) -> {
                    if (!success) {
                        fail(message);
                    }
                }).build();
        var running = CompletableFuture.runAsync(engine);
        if (!counted.all.await(10, TimeUnit.MINUTES)) {
            fail("after ten minutes there are " + counted.rows + " rows");
        }
        engine.close();
        running.get();
    }

    /** Ends the process, whose engine's threads would keep it. */
    static void fail(String message) {
        System.err.println(message);
        System.exit(1);
    }

    static Properties settings(String[] arguments, long seconds) {
        var settings = new Properties();
        settings.put("name", "bench");
        settings.put("topic.prefix", "bench");
        settings.put("connector.class", "io.debezium.connector.mongodb.MongoDbConnector");
        settings.put("mongodb.connection.string", arguments[0]);
        settings.put("capture.mode", "change_streams");
        settings.put("capture.scope", "collection");
        settings.put("capture.target", arguments[1]);
        settings.put("capture.start.op.time", Long.toString(seconds << 32));
        settings.put("snapshot.mode", "no_data");
        settings.put("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        settings.put("key.converter.schemas.enable", "false");
        settings.put("value.converter.schemas.enable", "false");
        return settings;
    }

    /** What has come, and when the last row did, with which `all` opens. */
    static class Counted {
        final CountDownLatch all = new CountDownLatch(1);
        final long wanted;
        long rows;
        int batches;
        long ended;

        Counted(long wanted) {
            this.wanted = wanted;
        }

        <T> DebeziumEngine.ChangeConsumer<ChangeEvent<T, T>> consumer() {
            return (List<ChangeEvent<T, T>> batch, DebeziumEngine.RecordCommitter<ChangeEvent<T, T>> committer) -> {
                for (var each : batch) {
                    committer.markProcessed(each);
                }
                committer.markBatchFinished();
                rows += batch.size();
                batches++;
                if (rows >= wanted) {
                    ended = System.nanoTime();
                    all.countDown();
                }
            };
        }
    }
}
