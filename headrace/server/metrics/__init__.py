"""`--metricsPort`: the server's metrics for Prometheus, and health checks."""
