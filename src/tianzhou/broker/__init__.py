"""The broker: takes messages from producers, keeps them in the store, gives them to consumers."""
