"""KPI-Chain: plans whose tasks carry typed entities as the test of their success, and continuation after failures."""
