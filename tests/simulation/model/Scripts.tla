------------------------------- MODULE Scripts -------------------------------
(* The server: lua/lock/* of aiolocks/_redis, with libraries/queue and hand_over, as functions of what it knows. A   *)
(* script runs alone and to its end, so each is one operator: the state in; state, reply and notices out.            *)
EXTENDS Integers, Sequences, TLC

CONSTANTS Sessions, \* one per connection pool: it has one link, one channel and one line of waiters
          Tokens,   \* one per acquisition: 1, 2, ...
          Owner,    \* token -> its session
          Ttl,      \* token -> ticks that its lease lasts
          Variant   \* "right", or the name of a defect planted in the protocol

(* Is `value`; the first time, TLC prints `what`: what is never met, the bounds are too small to say anything about. *)
ASSUME TLCSet(1, {})
Met(what, value) ==
  IF what \in TLCGet(1) THEN value
  ELSE IF TLCSet(1, TLCGet(1) \cup {what}) /\ PrintT(<<"met", what>>) THEN value ELSE value

Broken(name) == Variant = name
Larger(a, b) == IF a > b THEN a ELSE b

Empty ==
  [tok    |-> 0,     \* the holder's token, 0 when the lock is free
   number |-> 0,     \* the holder's fencing token, which lies beside its token
   ttl    |-> 0,     \* ticks until the lease ends by itself
   lapsed |-> FALSE, \* the last lease ended so (for the properties; the server does not know)
   fence  |-> 0,     \* the last fencing token, as far as the server remembers
   issued |-> <<>>,  \* every fencing token there was. TIME in microseconds outgrows their number, so that is the clock
   seats  |-> <<>>,  \* tokens by ticket; one that comes back has its old ticket with it
   line   |-> {},    \* tokens that wait: the entries of all `...:q:<session>`
   queue  |-> {},    \* sessions that stand in line: `...:queue`; the others have been passed over
   buried |-> {},    \* tombstones; they outlast any request that is on its way
   sub    |-> [s \in Sessions |-> "no"]] \* "here": NUMSUB counts it. "elsewhere": at another node, which delivers too

Seat(S, t) == CHOOSE i \in 1..Len(S.seats) : S.seats[i] = t
First(S, tokens) == CHOOSE t \in tokens : \A u \in tokens : Seat(S, t) <= Seat(S, u)
Waiters(S, s) == {t \in S.line : Owner[t] = s}

Place(S, s) == [S EXCEPT !.queue = IF Waiters(S, s) = {} THEN @ \ {s} ELSE @ \cup {s}]
Enqueue(S, t) == Place([S EXCEPT !.line = @ \cup {t},
                                 !.seats = IF \E i \in 1..Len(@) : @[i] = t THEN @ ELSE Append(@, t)], Owner[t])
Leave(S, t) == IF t \in S.line THEN Place([S EXCEPT !.line = @ \ {t}], Owner[t]) ELSE S
Extend(S, ttl) == [S EXCEPT !.ttl = Larger(@, ttl)]
Free(S) == [S EXCEPT !.tok = 0, !.number = 0, !.ttl = 0]

NextFence(S) == IF Broken("fence by INCR") THEN S.fence + 1 ELSE Larger(S.fence, Len(S.issued)) + 1
Grant(S, t, ttl) ==
  LET f == NextFence(S) IN
  [S EXCEPT !.tok = t, !.number = f, !.ttl = ttl, !.lapsed = FALSE, !.fence = f, !.issued = Append(@, f)]

News(t, f) == [tok |-> t, fence |-> f]
Outcome(S, is, fence) ==
  [srv |-> S, told |-> {}, reply |-> [is |-> is, fence |-> fence, mine |-> {}, stand |-> <<>>]]

(* Gives what is free to whoever waits longest and can be told: one of the asking session by the reply, another by a *)
(* notice. Whether it can be told is known beforehand (W1); who cannot is passed over (W2); on its own terms (W4).   *)
HandOver(out, s, terms) ==
  LET S == IF Waiters(out.srv, s) = {} THEN out.srv ELSE Place(out.srv, s) \* passed over before, but here it is
      dead == {q \in S.queue : Waiters(S, q) = {}}
      reachable == {q \in S.queue \ dead : q = s \/ S.sub[q] = "here"}
      next == First(S, {t \in S.line : Owner[t] \in reachable})
      passed == {q \in S.queue \ dead : reachable = {} \/ Seat(S, First(S, Waiters(S, q))) < Seat(S, next)}
      rest == [S EXCEPT !.queue = @ \ (dead \cup passed)]
      G == Leave(Grant(rest, next, IF Broken("releaser's ttl") THEN terms ELSE Ttl[next]), next)
      news == {News(next, G.number)}
      rumours == IF ~Broken("PUBLISH count") THEN {} \* its count was 0, and yet they hear it
                 ELSE {News(First(S, Waiters(S, q)), NextFence(S)) : q \in {p \in passed : S.sub[p] = "elsewhere"}}
  IN CASE reachable = {} ->
            Met("nobody reachable", [out EXCEPT !.srv = rest, !.told = rumours])
       [] reachable # {} /\ Owner[next] = s ->
            Met("by the reply", [out EXCEPT !.srv = G, !.told = rumours, !.reply.mine = news])
       [] OTHER ->
            Met("by a notice", [out EXCEPT !.srv = G, !.told = rumours \cup news])

GrantScript(S, s, t) ==
  LET Q == Enqueue(S, t)
      G == Grant(S, t, Ttl[t])
      H == HandOver(Outcome(Q, "queued", 0), s, Ttl[t])
  IN CASE t \in S.buried ->
            Met("overtaken by its undo", Outcome(S, "withdrawn", 0))
       [] S.tok = t ->
            Met("asked twice", Outcome(Leave(Extend(S, Ttl[t]), t), "granted", S.number))
       [] S.tok \notin {0, t} ->
            Outcome(Q, "queued", Q.fence)
       [] Broken("barging") \/ (S.queue = {} /\ Waiters(S, s) = {}) ->
            Outcome(G, "granted", G.number)
       [] OTHER ->
            Met("free, and others wait", [H EXCEPT !.reply.is = IF H.srv.tok = t THEN "granted" ELSE "queued",
                                                   !.reply.fence = H.srv.fence])

ReleaseScript(S, s, t, bury) ==
  LET ours == S.tok = t \/ (Broken("release without compare") /\ t \notin S.line)
      U == IF ours THEN Free(S) ELSE Leave(S, t)
      B == IF bury /\ ~Broken("no tombstone") THEN [U EXCEPT !.buried = @ \cup {t}] ELSE U
  IN IF B.tok # 0 THEN Outcome(B, "undone", 0) ELSE HandOver(Outcome(B, "undone", 0), s, Ttl[t])

(* How each of the tokens stands: -1 it waits, 0 it is unknown, else the fence of its grant. Creates nothing (W8).   *)
RecheckScript(S, s, tokens) ==
  LET stand == [t \in tokens |-> IF t = S.tok THEN S.number ELSE IF t \in S.line THEN -1 ELSE 0]
      unknown == {t \in tokens : stand[t] = 0}
      E == IF S.tok \in tokens THEN Leave(Extend(S, Ttl[S.tok]), S.tok) ELSE S
      C == IF Broken("re-check creates") /\ unknown # {} THEN Enqueue(E, CHOOSE t \in unknown : TRUE) ELSE E
      K == IF \E t \in tokens : stand[t] = -1 THEN Place(C, s) ELSE C
      out == [Outcome(K, "stand", S.fence) EXCEPT !.reply.stand = stand]
  IN IF K.tok # 0 THEN out ELSE HandOver(out, s, 0)

RenewScript(S, t, ttl) ==
  CASE S.tok = t -> Outcome(IF Broken("renewal shortens") THEN [S EXCEPT !.ttl = ttl] ELSE Extend(S, ttl), "renewed", 0)
    [] S.tok = 0 /\ Broken("renewal re-creates") ->
         Outcome([S EXCEPT !.tok = t, !.number = 1, !.ttl = ttl], "renewed", 0)
    [] OTHER ->
         Met("not yours", Outcome(S, "taken", 0))

Run(S, call) ==
  CASE call.op = "grant"   -> GrantScript(S, call.from, call.tok)
    [] call.op = "release" -> ReleaseScript(S, call.from, call.tok, call.bury)
    [] call.op = "recheck" -> RecheckScript(S, call.from, call.toks)
    [] call.op = "renew"   -> RenewScript(S, call.tok, call.ttl)
==============================================================================
