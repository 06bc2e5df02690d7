"""The stability study: many tiny policies trained at once, under pressure, by every algorithm."""
