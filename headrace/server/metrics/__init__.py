"""`--metricsPort`: what the server counts, for Prometheus and for checks of its health."""
