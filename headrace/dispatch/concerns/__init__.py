"""`readConcern` and `writeConcern`: their checks and waits, and the errors of those that one member cannot satisfy."""
