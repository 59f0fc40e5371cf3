"""The law of learning: what a job loses against data parallel as units grow in number and models in size."""
