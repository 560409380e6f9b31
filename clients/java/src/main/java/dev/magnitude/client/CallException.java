package dev.magnitude.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;

/** What a call failed with: a gRPC status, and the google.rpc details that the server sends with it. */
public final class CallException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final Status.Code code;
  private String reason = "";
  private transient Map<String, String> details = Map.of();
  private transient Map<String, String> fieldViolations = Map.of();
  private Duration retryAfter;

  /** Of a StatusException or StatusRuntimeException. */
  CallException(Exception failure) {
    super(failure.getMessage(), failure);
    code = Status.fromThrowable(failure).getCode();
    var status = StatusProto.fromThrowable(failure);
    try {
      for (Any detail : status == null ? List.<Any>of() : status.getDetailsList()) {
        read(detail);
      }
    } catch (InvalidProtocolBufferException damaged) {
      addSuppressed(damaged);
    }
  }

  private void read(Any detail) throws InvalidProtocolBufferException {
    if (detail.is(ErrorInfo.class)) {
      var info = detail.unpack(ErrorInfo.class);
      reason = info.getReason();
      details = info.getMetadataMap();
    } else if (detail.is(RetryInfo.class)) {
      var delay = detail.unpack(RetryInfo.class).getRetryDelay();
      retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
    } else if (detail.is(BadRequest.class)) {
      fieldViolations = detail.unpack(BadRequest.class).getFieldViolationsList().stream()
          .collect(Collectors.toMap(violation -> violation.getField(), violation -> violation.getDescription()));
    }
  }

  /** The gRPC status. */
  public Status.Code code() {
    return code;
  }

  /** The server's word for it ("CONTEXT_LENGTH_EXCEEDED"); empty if it did not come from the server. */
  public String reason() {
    return reason;
  }

  /** The parts of the message by name. */
  public Map<String, String> details() {
    return details;
  }

  /** The paths of fields at fault, with what is wrong. */
  public Map<String, String> fieldViolations() {
    return fieldViolations;
  }

  /** How long to wait, where waiting helps. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(retryAfter);
  }
}
