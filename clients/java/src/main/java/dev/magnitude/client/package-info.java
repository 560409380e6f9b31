/** Magnitude for Java: {@link dev.magnitude.client.Client} talks to a server, dev.magnitude.v1 is its contract. */
package dev.magnitude.client;
