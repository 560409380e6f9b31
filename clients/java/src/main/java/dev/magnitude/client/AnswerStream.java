package dev.magnitude.client;

import dev.magnitude.v1.InferenceServiceGrpc.InferenceServiceBlockingStub;
import dev.magnitude.v1.StreamFinished;
import dev.magnitude.v1.StreamInferRequest;
import dev.magnitude.v1.StreamInferResponse;
import dev.magnitude.v1.StreamStarted;
import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.util.Collections;
import java.util.Iterator;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * A streamed answer: an iterator over its events, or a stream of its text. It begins when it is first read; to close it
 * early ends the request.
 */
public final class AnswerStream implements Iterator<StreamInferResponse>, AutoCloseable {
  private final Context.CancellableContext context = Context.current().withCancellation();
  private final InferenceServiceBlockingStub stub;
  private final StreamInferRequest request;
  private final int attempts;
  private Iterator<StreamInferResponse> events;
  private StreamStarted started;
  private StreamFinished finished;

  /** A request that changes something may have more than one attempt: until its first event it may be refused. */
  AnswerStream(InferenceServiceBlockingStub stub, StreamInferRequest request, int attempts) {
    this.stub = stub;
    this.request = request;
    this.attempts = attempts;
  }

  @Override
  public boolean hasNext() {
    try {
      if (events == null) {
        events = Collections.emptyIterator(); // what could not begin is over
        events = Retry.change(attempts, Client.deadlineOf(stub), this::begun);
      }
      return events.hasNext();
    } catch (StatusRuntimeException failure) {
      throw new CallException(failure);
    }
  }

  /** The events, when the first one is there. */
  private Iterator<StreamInferResponse> begun() {
    var before = context.attach();
    try {
      var begun = stub.streamInfer(request);
      begun.hasNext();
      return begun;
    } finally {
      context.detach(before);
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
