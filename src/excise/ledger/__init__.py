"""Deletion requests over years: a durable ledger, exactly-once processing, signed certificates and their verifier."""
