import java.io.IOException;
import java.util.Arrays;

/**
 * Runs the main method of another class and ends the JVM at once when standard input is closed.
 *
 * <p>The tests hold the other end of that pipe, so no server outlives the test run that started it,
 * however the run ends.
 */
public final class Launch {
    private Launch() {
    }

    public static void main(String[] args) throws Exception {
        Thread watch = new Thread(Launch::haltAtEndOfInput, "parent-watch");
        watch.setDaemon(true);
        watch.start();
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        Class.forName(args[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
    }

    private static void haltAtEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException gone) {
            // A broken pipe means the same as a closed one.
        }
        Runtime.getRuntime().halt(3);
    }
}
