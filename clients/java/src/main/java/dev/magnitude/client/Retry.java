package dev.magnitude.client;

import dev.magnitude.v1.InferRequest;
import io.grpc.Deadline;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Calls that change something are made again only where the server refused them for now: an error with a delay says
 * that, and that nothing was done. What changes nothing gRPC itself repeats, as service_config.json says.
 */
final class Retry {
  /** How often a call is tried, as in the service config. */
  static final int ATTEMPTS_MAX = 4;

  private Retry() {}

  /**
   * How often a request of a session is tried. What fails in saving it afterwards fails when the session has the answer
   * already: whether there was one cannot be told, so that such a request is never made again.
   */
  static int attemptsOf(InferRequest request, int attempts) {
    return request.hasSnapshotAfterwards() ? 1 : attempts;
  }

  /**
   * Makes such a call until it is taken. A wait that would not end before the deadline, where there is one, is none: the
   * refusal says more than that the time is over.
   */
  static <T> T change(int attempts, Deadline deadline, Supplier<T> call) {
    for (var left = attempts; ; left--) {
      try {
        return call.get();
      } catch (StatusRuntimeException failure) {
        pause(new CallException(failure), left, deadline);
      } catch (CallException failure) {
        pause(failure, left, deadline);
      }
    }
  }

  private static void pause(CallException refusal, int attemptsLeft, Deadline deadline) {
    if (attemptsLeft <= 1 || refusal.retryAfter().isEmpty()) {
      throw refusal;
    }
    var nanoseconds = refusal.retryAfter().get().toNanos();
    if (deadline != null && deadline.timeRemaining(TimeUnit.NANOSECONDS) <= nanoseconds) {
      throw refusal;
    }
    try {
      TimeUnit.NANOSECONDS.sleep(nanoseconds);
    } catch (InterruptedException stopped) {
      throw interrupted();
    }
  }

  /** What a call of an interrupted thread fails with. */
  static CallException interrupted() {
    Thread.currentThread().interrupt();
    return new CallException(Status.CANCELLED.withDescription("The thread was interrupted.").asException());
  }
}
