package dev.magnitude.client;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.StatusOr;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/** Resolves "ipv4:10.0.0.1:50051,10.0.0.2:50051", as gRPC of other languages does by itself. gRPC finds it. */
public final class AddressesProvider extends NameResolverProvider {
  private static final String SCHEME = "ipv4";

  @Override
  protected boolean isAvailable() {
    return true;
  }

  /** Lower than that of DNS, whose scheme is that of a name without one. */
  @Override
  protected int priority() {
    return 4;
  }

  @Override
  public String getDefaultScheme() {
    return SCHEME;
  }

  @Override
  public NameResolver newNameResolver(URI target, NameResolver.Args arguments) {
    return SCHEME.equals(target.getScheme()) ? new Addresses(target.getSchemeSpecificPart().split(",")) : null;
  }

  private static final class Addresses extends NameResolver {
    private final String[] addresses;

    Addresses(String[] addresses) {
      this.addresses = addresses;
    }

    /** Names the servers in calls by the first one. */
    @Override
    public String getServiceAuthority() {
      return addresses[0];
    }

    @Override
    public void start(Listener2 listener) {
      List<EquivalentAddressGroup> groups = Arrays.stream(addresses).map(Addresses::group).collect(Collectors.toList());
      listener.onResult(ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(groups)).build());
    }

    @Override
    public void shutdown() {}

    private static EquivalentAddressGroup group(String address) {
      var colon = address.lastIndexOf(':');
      var socket = new InetSocketAddress(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
      var named = Attributes.newBuilder().set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, address).build();
      return new EquivalentAddressGroup(socket, named);
    }
  }
}
