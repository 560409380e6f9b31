/** Retries of what changes nothing, or the same thing twice, as gRPC does them, over all addresses of a name. The
 * server's pushback says how long to wait, or that it is of no use. */
export const SERVICE_CONFIG = {
  "loadBalancingConfig": [{ "round_robin": {} }],
  "methodConfig": [
    {
      "name": [
        { "service": "magnitude.v1.InferenceService" },
        { "service": "magnitude.v1.ModelService", "method": "ListModels" },
        { "service": "magnitude.v1.ModelService", "method": "GetModel" },
        { "service": "magnitude.v1.HealthService" },
        { "service": "magnitude.v1.SnapshotService", "method": "Restore" },
        { "service": "magnitude.v1.SnapshotService", "method": "Get" },
        { "service": "magnitude.v1.SnapshotService", "method": "List" },
        { "service": "magnitude.v1.SnapshotService", "method": "Compact" },
        { "service": "magnitude.v1.SnapshotService", "method": "ExportState" }
      ],
      "retryPolicy": {
        "maxAttempts": 4,
        "initialBackoff": "0.2s",
        "maxBackoff": "5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
      }
    }
  ]
};
