"""What the bytes of every file family mean. Pure: values in, values out; nothing here opens a file."""
