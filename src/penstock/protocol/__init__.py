"""What clients and nodes say to each other, as bytes. Pure: nothing here knows a socket."""
