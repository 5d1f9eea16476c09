"""Background loops: leases, assignment, sealing, garbage. Each is one round, again and again, under the job's SQL lease."""
