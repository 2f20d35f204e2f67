"""Models, endpoints and scripts that know what to do: agents and reports are tried with them, without any model."""
