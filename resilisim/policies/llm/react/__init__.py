"""ReAct: thought, action, observation, one call of the model a step."""
