"""What horovod's packages for all frameworks share."""
