"""Speech as text: transcripts of audio by the artifact of a speech model."""
