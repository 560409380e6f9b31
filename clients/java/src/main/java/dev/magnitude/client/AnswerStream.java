package dev.magnitude.client;

import dev.magnitude.v1.InferenceServiceGrpc.InferenceServiceBlockingStub;
import dev.magnitude.v1.StreamFinished;
import dev.magnitude.v1.StreamInferRequest;
import dev.magnitude.v1.StreamInferResponse;
import dev.magnitude.v1.StreamStarted;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.util.Iterator;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** A streamed answer: an iterator over its events, or a stream of its text. To close it early ends the request. */
public final class AnswerStream implements Iterator<StreamInferResponse>, AutoCloseable {
  private final Context.CancellableContext context = Context.current().withCancellation();
  private final Iterator<StreamInferResponse> events;
  private StreamStarted started;
  private StreamFinished finished;

  AnswerStream(InferenceServiceBlockingStub stub, StreamInferRequest request) {
    var before = context.attach();
    try {
      events = stub.streamInfer(request);
    } finally {
      context.detach(before);
    }
  }

  @Override
  public boolean hasNext() {
    try {
      return events.hasNext();
    } catch (StatusRuntimeException failure) {
      throw new CallException(failure);
    }
  }

  @Override
  public StreamInferResponse next() {
    hasNext(); // throws what the call failed with
    var event = events.next();
    if (event.hasStarted()) {
      started = event.getStarted();
    } else if (event.hasFinished()) {
      finished = event.getFinished();
    }
    return event;
  }

  /** The text of the first choice, as it comes. */
  public Stream<String> texts() {
    var ordered = Spliterators.spliteratorUnknownSize(this, Spliterator.ORDERED | Spliterator.NONNULL);
    return StreamSupport.stream(ordered, false)
        .filter(event -> event.hasDelta() && event.getDelta().getIndex() == 0)
        .map(event -> event.getDelta().getText())
        .filter(text -> !text.isEmpty())
        .onClose(this::close);
  }

  /** The first event, when it has passed; null before. */
  public StreamStarted started() {
    return started;
  }

  /** The last event, when it has passed; null before. */
  public StreamFinished finished() {
    return finished;
  }

  @Override
  public void close() {
    context.cancel(null);
  }
}
