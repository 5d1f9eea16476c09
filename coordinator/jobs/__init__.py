"""Background loops: leases, assignment, sealing, garbage. Each is one round of the store, again and again, under the job's SQL lease."""
