"""The parts that a law can add to the benchmark's: rate limits, outages, broken tools, kinds of errors and so on."""
