/** The contract's messages and services. */

export * from "./magnitude/v1/common_pb.js";
export * from "./magnitude/v1/health_pb.js";
export * from "./magnitude/v1/inference_pb.js";
export * from "./magnitude/v1/model_pb.js";
export * from "./magnitude/v1/snapshot_pb.js";
