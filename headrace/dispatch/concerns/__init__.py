"""`readConcern` and `writeConcern`: checked, waited for, and the errors of those that one member cannot satisfy."""
