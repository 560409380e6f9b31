package dev.magnitude.client;

import com.google.gson.Gson;
import dev.magnitude.v1.ChatMessage;
import dev.magnitude.v1.HealthServiceGrpc;
import dev.magnitude.v1.InferRequest;
import dev.magnitude.v1.InferResponse;
import dev.magnitude.v1.InferenceServiceGrpc;
import dev.magnitude.v1.ModelServiceGrpc;
import dev.magnitude.v1.SnapshotServiceGrpc;
import dev.magnitude.v1.StreamInferRequest;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptor;
import io.grpc.Deadline;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A connection to one server, or to all that a name stands for. Threads may share it. Every call that fails throws a
 * {@link CallException}; an interrupted thread cancels its call.
 */
public final class Client implements AutoCloseable {
  private final ManagedChannel channel;
  private final ManagedChannel once;
  private final int attempts;
  private final Duration timeout;

  private Client(ManagedChannel channel, ManagedChannel once, int attempts, Duration timeout) {
    this.channel = channel;
    this.once = once;
    this.attempts = attempts;
    this.timeout = timeout;
  }

  /**
   * A client of "host:port", of "ipv4:10.0.0.1:50051,10.0.0.2:50051", "dns:///name:port", or any other name that gRPC
   * resolves.
   */
  public static Builder builder(String address) {
    return new Builder(address);
  }

  /** The whole answer. */
  public InferResponse infer(InferRequest request) {
    if (request.getSessionId().isEmpty()) {
      return call(() -> inference().infer(request));
    }
    var stub = bounded(InferenceServiceGrpc.newBlockingStub(once));
    return Retry.change(Retry.attemptsOf(request, attempts), deadlineOf(stub), () -> stub.infer(request));
  }

  /** The answer as it comes. To close it early ends the request at the server. */
  public AnswerStream stream(InferRequest request) {
    var streamed = StreamInferRequest.newBuilder().setRequest(request).build();
    if (request.getSessionId().isEmpty()) {
      return new AnswerStream(inference(), streamed, 1);
    }
    var stub = bounded(InferenceServiceGrpc.newBlockingStub(once));
    return new AnswerStream(stub, streamed, Retry.attemptsOf(request, attempts));
  }

  /**
   * A chat that begins with some messages, often one of the system's. What {@code options} ask for, a request without
   * a prompt, holds for every answer.
   */
  public Conversation conversation(List<ChatMessage> messages, InferRequest options) {
    return new Conversation(this, messages, options);
  }

  /** A session by its name. The first request begins it; what was saved of it comes back by itself. */
  public Session session(String id) {
    return new Session(this, id);
  }

  /** The same connection with another bound of each call. */
  public Client withTimeout(Duration timeout) {
    return new Client(channel, once, attempts, Objects.requireNonNull(timeout));
  }

  /** Makes a call of any stub; what it throws becomes a {@link CallException}. */
  public <T> T call(Supplier<T> call) {
    try {
      return call.get();
    } catch (StatusRuntimeException failure) {
      throw new CallException(failure);
    }
  }

  /** Makes a call that changes something, by any stub: again only where the server refused it for now. */
  public <S extends AbstractStub<S>, T> T change(S stub, Function<S, T> call) {
    return Retry.change(attempts, deadlineOf(stub), () -> call.apply(stub));
  }

  /** The generated stub. */
  public InferenceServiceGrpc.InferenceServiceBlockingStub inference() {
    return bounded(InferenceServiceGrpc.newBlockingStub(channel));
  }

  /** The generated stub. */
  public ModelServiceGrpc.ModelServiceBlockingStub models() {
    return bounded(ModelServiceGrpc.newBlockingStub(channel));
  }

  /** The generated stub. */
  public HealthServiceGrpc.HealthServiceBlockingStub health() {
    return bounded(HealthServiceGrpc.newBlockingStub(channel));
  }

  /** The generated stub. */
  public SnapshotServiceGrpc.SnapshotServiceBlockingStub snapshots() {
    return bounded(SnapshotServiceGrpc.newBlockingStub(channel));
  }

  SnapshotServiceGrpc.SnapshotServiceBlockingV2Stub streamingSnapshots() {
    return bounded(SnapshotServiceGrpc.newBlockingV2Stub(channel));
  }

  /** Ends the connection; open calls are cancelled. */
  @Override
  public void close() {
    channel.shutdownNow();
    once.shutdownNow();
  }

  private <S extends AbstractStub<S>> S bounded(S stub) {
    return timeout == null ? stub : stub.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS);
  }

  static Deadline deadlineOf(AbstractStub<?> stub) {
    return stub.getCallOptions().getDeadline();
  }

  /** How to connect. */
  public static final class Builder {
    private final String address;
    private ChannelCredentials credentials = InsecureChannelCredentials.create();
    private boolean encrypted;
    private String token;
    private Duration timeout;
    private boolean retries = true;

    private Builder(String address) {
      this.address = address;
    }

    /** Encrypts, and trusts the system's authorities. */
    public Builder tls() {
      return tls(TlsChannelCredentials.create());
    }

    /** Encrypts with authorities, and for mutual TLS a certificate, of your own: see TlsChannelCredentials. */
    public Builder tls(ChannelCredentials credentials) {
      this.credentials = credentials;
      this.encrypted = true;
      return this;
    }

    /** Sends a bearer token with every call. It needs TLS. */
    public Builder token(String token) {
      this.token = token;
      return this;
    }

    /** Bounds each call. Absent: no bound. */
    public Builder timeout(Duration timeout) {
      this.timeout = timeout;
      return this;
    }

    /** Without them a refusal that would pass is thrown at once, with how long to wait. */
    public Builder retries(boolean retries) {
      this.retries = retries;
      return this;
    }

    /** The client; it connects when it is first used. */
    public Client build() {
      return new Client(channel(retries), channel(false), retries ? Retry.ATTEMPTS_MAX : 1, timeout);
    }

    private ManagedChannel channel(boolean retries) {
      var channel = Grpc.newChannelBuilder(address, credentials)
          .defaultServiceConfig(serviceConfig())
          .maxInboundMessageSize(Integer.MAX_VALUE);
      if (token != null) {
        channel.intercept(bearer());
      }
      return (retries ? channel.enableRetry() : channel.disableRetry()).build();
    }

    private ClientInterceptor bearer() {
      if (!encrypted) {
        throw new IllegalStateException("A token needs TLS: it would be sent in the clear.");
      }
      var header = new Metadata();
      header.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
      return MetadataUtils.newAttachHeadersInterceptor(header);
    }

    /**
     * Retries of what changes nothing, or the same thing twice, as gRPC does them, over all addresses of a name; the
     * server's pushback says how long to wait.
     */
    @SuppressWarnings("unchecked")
    private static Map<String, ?> serviceConfig() {
      var resource = Client.class.getResourceAsStream("service_config.json");
      try (Reader reader = new InputStreamReader(resource, StandardCharsets.UTF_8)) {
        return new Gson().fromJson(reader, Map.class);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
