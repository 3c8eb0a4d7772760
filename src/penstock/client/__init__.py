"""A caller's side of the protocol: a blocking and an asyncio face over one pure connection.

``connection`` turns requests into bytes and bytes into answers; ``operations`` knows what a request
is good for, when it may be repeated and what an answer means; both know no socket and no clock.
``blocking`` and ``asynchronous`` carry out what they say. The page is docs/client.md.
"""
